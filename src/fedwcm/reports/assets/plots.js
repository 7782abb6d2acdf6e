"use strict";

/* From the figures of the report to options of ECharts. Nothing here knows of federated learning: a figure is curves,
   bars, a scatter plot or a heatmap. */

const plots = (() => {
  const { axis, common, least, legend, legendRows, LEGEND_ROW, logTicks, most, number, scale, style, tip } = themes;
  const { ticks, withSpread } = themes;
  const MARKERS_ON_A_CURVE = 8;
  const TOOLTIP_ROWS = 14;
  const [LABEL_WIDTH, LABEL_HEIGHT] = [150, 14];
  const PROGRESS = ["round", "MB", "seconds"]; // curves over these end where the runs end
  const CELLS_FOR_CANVAS = 2500;

  function curves(figure, theme, context, width) {
    const names = figure.curves.map((curve) => curve.name);
    const visible = figure.curves.filter((curve) => !figure.by_method || context.shown(curve.name));
    const limit = limitOf(figure, visible);
    const span = scaleOf(figure, visible, false, limit);
    const styles = figure.curves.map((curve, i) => style(context.index(figure, curve, i), theme));
    const lines = figure.curves.map((curve, i) =>
      line(curve, context.index(figure, curve, i), styles[i], limit, span),
    );
    const bands = figure.curves.flatMap((curve, i) =>
      curve.spread && curve.x.length > 1 ? [shapes.band(curve, figure.bounds, styles[i].colour, limit)] : [],
    );
    const marks = figure.curves.flatMap((curve, i) => shapes.offScale(curve, limit, span.max, styles[i].colour));
    marks.push(...figure.curves.flatMap((curve, i) => shapes.point(curve, styles[i].colour)));
    const grid = {
      left: 58,
      right: figure.right_label ? 58 : 18,
      top: 18 + LEGEND_ROW * legendRows(figure, names, theme, context, width),
      bottom: 44,
    };
    if (figure.by_method && !figure.right_label && width > 400 && PROGRESS.includes(figure.x_label))
      nameEnds(lines, visible, span, grid, height(figure, width, theme, context), theme);
    if (figure.mark !== null) lines[0].markLine = shapes.markLine(figure.mark, theme);
    const labels = (interval) => ({ color: theme.faint, hideOverlap: true, formatter: ticks(interval) });
    const left = axis(figure.y_label, theme, {
      type: "value",
      nameGap: 44,
      axisLabel: labels(span.interval),
      ...span,
    });
    const spanRight = scaleOf(figure, visible, true, null);
    const right = axis(figure.right_label, theme, {
      type: "value",
      nameGap: 44,
      axisLabel: labels(spanRight.interval),
      ...spanRight,
      splitLine: { show: false },
    });
    return {
      ...common(figure, theme),
      legend: legend(figure, names, theme, context, width),
      grid,
      xAxis: axis(figure.x_label, theme, {
        type: figure.log_x ? "log" : "value",
        nameGap: 26,
        ...(figure.x_label === "round" ? { minInterval: 1 } : {}),
        min: ({ min, max }) => (min < max ? min : min - 1),
        max: ({ min, max }) => (min < max ? max : max + 1),
        axisTick: { lineStyle: { color: theme.line }, ...between(figure) },
        axisLabel: { color: theme.faint, hideOverlap: true, ...ends(figure), ...between(figure) },
        splitLine: { show: false },
      }),
      yAxis: figure.right_label ? [left, right] : left,
      dataZoom: zoom(),
      tooltip: {
        ...common(figure, theme).tooltip,
        trigger: "axis",
        position: beside,
        formatter: (items) => curvesTip(figure, items),
      },
      series: [...lines, ...bands, ...marks], // lines first: the legend shows the first series of a name
    };
  }

  /* An axis of rounds says where it begins and ends; elsewhere the ends are no round numbers. */
  function ends(figure) {
    if (figure.x_label === "round") return {};
    return figure.log_x ? { formatter: number } : { showMinLabel: false, showMaxLabel: false, formatter: number };
  }

  /* A logarithmic axis has ticks between the powers of ten as well, of which it may show one only. */
  function between(figure) {
    const values = figure.log_x ? figure.curves.flatMap((curve) => curve.x) : [];
    return figure.log_x ? { customValues: logTicks(least(values), most(values)) } : {};
  }

  /* The names of curves at their ends, moved apart where they would cover each other. */
  function nameEnds(lines, visible, span, grid, tall, theme) {
    const room = tall - grid.top - grid.bottom;
    const ends = visible
      .map(({ name, y }) => ({ name, at: (room * (span.max - y.at(-1))) / (span.max - span.min) }))
      .filter(({ at }) => Number.isFinite(at) && at >= 0)
      .sort((one, other) => one.at - other.at);
    const total = LABEL_HEIGHT * (ends.length - 1);
    if (!ends.length || total > room) return;
    grid.right = 24 + Math.min(LABEL_WIDTH, longest(ends.map(({ name }) => name)) * 7);
    const places = [];
    for (const { at } of ends) places.push(Math.max(at, (places.at(-1) ?? -Infinity) + LABEL_HEIGHT));
    for (let i = places.length - 1, end = room; i >= 0; i--) end = (places[i] = Math.min(places[i], end)) - LABEL_HEIGHT;
    for (const [i, { name, at }] of ends.entries()) {
      const found = lines.find((drawn) => drawn.name === name);
      found.endLabel = {
        show: true,
        formatter: name,
        color: theme.ink,
        offset: [0, places[i] - at],
        width: LABEL_WIDTH,
        overflow: "truncate",
      };
    }
  }

  /* The value above which values are off scale; null if all are on it, or if nothing else is shown. */
  function limitOf(figure, visible) {
    if (figure.limit === null) return null;
    const isOn = (y) => y !== null && y <= figure.limit;
    return visible.some((curve) => curve.y.some(isOn)) ? figure.limit : null;
  }

  function scaleOf(figure, lines, right, limit) {
    const top = limit ?? Infinity;
    const values = lines
      .filter((curve) => curve.right === right)
      .flatMap((curve) => {
        const leaves = curve.y.some((y) => y > top);
        return curve.y.flatMap((y, i) => {
          const spread = leaves ? 0 : (curve.spread?.[i] ?? 0);
          return y === null || y > top ? [] : [y - spread, Math.min(y + spread, top)];
        });
      });
    if (!right && figure.mark !== null) values.push(0, figure.mark * 1.1);
    if (!right && figure.bounds && figure.bounds[1] === null) values.push(figure.bounds[0]);
    if (!values.length) return {};
    return scale(least(values), most(values), right ? null : figure.bounds);
  }

  function zoom() {
    const touch = matchMedia("(pointer: coarse)").matches;
    return [
      {
        type: "inside",
        filterMode: "none",
        zoomOnMouseWheel: "ctrl",
        moveOnMouseMove: "shift",
        moveOnMouseWheel: false,
        disabled: touch,
      },
    ];
  }

  /* A line leaves the plot where its values are off scale. */
  function line(curve, index, { colour, dash, marker }, limit, span) {
    const step = Math.max(1, Math.ceil(curve.x.length / MARKERS_ON_A_CURVE));
    const isOff = (y) => limit !== null && y !== null && y > limit;
    const data = curve.x.map((x, i) => [x, isOff(curve.y[i]) ? 2 * span.max - span.min : curve.y[i]]);
    return {
      type: "line",
      name: curve.name,
      yAxisIndex: curve.right ? 1 : 0,
      data,
      symbol: `path://${marker}`,
      symbolSize: (_, item) => ((item.dataIndex + index) % step === 0 ? 7 : 0),
      showAllSymbol: true,
      itemStyle: { color: colour },
      lineStyle: { color: colour, type: dash, width: 2 },
      emphasis: { disabled: true },
      z: 3,
    };
  }

  /* On the side of the plot where the pointer is not: a table of all methods would hide what it explains. */
  function beside([x], _items, _box, _part, { contentSize, viewSize }) {
    return [x < viewSize[0] / 2 ? viewSize[0] - contentSize[0] : 0, 0];
  }

  function curvesTip(figure, items) {
    const colours = new Map(items.map((item) => [item.seriesName, item.color]));
    const found = new Map(figure.curves.map((curve) => [curve.name, curve]));
    const rows = items
      .filter((item) => item.seriesType === "line" && item.value[1] !== null)
      .map((item) => [found.get(item.seriesName), item.dataIndex])
      .sort(([one, i], [other, j]) => other.y[j] - one.y[i])
      .map(([curve, i]) => [curve.name, withSpread(curve.y[i], curve.spread?.[i]), colours.get(curve.name)]);
    const more = rows.length - TOOLTIP_ROWS;
    if (more > 0) rows.splice(TOOLTIP_ROWS, more, [`and ${more} below`, ""]);
    return tip(items.length ? `${figure.x_label} ${number(items[0].value[0])}` : "", rows);
  }

  function bars(figure, theme, context, width) {
    const names = figure.bars.map((bar) => bar.name);
    const indices = figure.bars.map((bar, i) => context.index(figure, bar, i));
    const visible = names.filter((name) => !figure.by_method || context.shown(name)).length || 1;
    const fitting = Math.max(1, Math.floor((width - 76) / (visible * 5 + 8)));
    const crowded = figure.categories.length > fitting;
    const values = axis(figure.y_label, theme, {
      type: "value",
      nameGap: 44,
      min: figure.bounds ? figure.bounds[0] : 0,
      max: figure.bounds ? figure.bounds[1] : null,
      axisLabel: { color: theme.faint, hideOverlap: true, formatter: number },
    });
    const slot = (width - 76) / Math.min(figure.categories.length, fitting);
    const tilted = longest(figure.categories) * 7 > slot;
    const rows = legendRows(figure, names, theme, context, width);
    return {
      ...common(figure, theme),
      aria: { enabled: true, label: { enabled: false }, decal: { show: names.length > 1 } },
      legend: legend(figure, names, theme, context, width),
      grid: { left: 58, right: 18, top: 18 + LEGEND_ROW * rows, bottom: (tilted ? 112 : 48) + (crowded ? 34 : 0) },
      xAxis: axis(figure.x_label, theme, {
        type: "category",
        data: figure.categories,
        nameGap: tilted ? 92 : 28,
        axisLabel: {
          color: theme.faint,
          rotate: tilted ? 40 : 0,
          width: tilted ? 118 : 130,
          overflow: "truncate",
          interval: figure.categories.length > 40 ? "auto" : 0,
          hideOverlap: true,
        },
      }),
      yAxis: values,
      dataZoom: crowded
        ? [
            {
              type: "slider",
              bottom: 6,
              height: 18,
              startValue: figure.key === "classes" ? figure.categories.length - fitting : 0, // the rare ones first
              endValue: figure.key === "classes" ? figure.categories.length - 1 : fitting - 1,
              brushSelect: false,
              textStyle: { color: theme.faint },
            },
          ]
        : [],
      tooltip: {
        ...common(figure, theme).tooltip,
        trigger: "axis",
        axisPointer: { type: "shadow" },
        position: beside,
        formatter: (items) => barsTip(figure, items),
      },
      series: [
        ...figure.bars.map((bar, i) => ({
          type: "bar",
          name: bar.name,
          data: bar.values,
          barGap: "8%",
          barCategoryGap: "22%",
          itemStyle: { color: style(indices[i], theme).colour, decal: style(indices[i], theme).decal },
          emphasis: { disabled: true },
        })),
        ...figure.bars.map((bar, i) => shapes.whiskers(bar, i, names.length, theme)).filter(Boolean),
      ],
    };
  }

  function longest(names) {
    return most(names.map((name) => name.length));
  }

  function barsTip(figure, items) {
    const drawn = items.filter((item) => item.seriesType === "bar");
    const spreads = new Map(figure.bars.map((bar) => [bar.name, bar.spread]));
    const rows = drawn
      .slice(0, TOOLTIP_ROWS)
      .map((item) => [item.seriesName, withSpread(item.value, spreads.get(item.seriesName)?.[item.dataIndex]), item.color]);
    return tip(drawn.length ? drawn[0].name : "", rows);
  }

  function scatter(figure, theme, context, width) {
    const shares = figure.series.flatMap((series) => series.x);
    const [low, high] = [Math.min(...shares) * 0.75, Math.min(100, Math.max(...shares) * 1.35)];
    const ticks = { customValues: logTicks(low, high) };
    const names = figure.series.map((series) => series.name);
    const total = figure.series.reduce((sum, series) => sum + series.x.length, 0);
    return {
      ...common(figure, theme),
      legend: { ...legend(figure, names, theme, context, width), itemWidth: 14 },
      grid: { left: 58, right: 30, top: 56, bottom: 48 },
      xAxis: axis(figure.x_label, theme, {
        type: "log",
        inverse: true,
        nameGap: 28,
        min: low,
        max: high,
        splitLine: { show: false },
        axisTick: { ...ticks, lineStyle: { color: theme.line } },
        axisLabel: { ...ticks, color: theme.faint, formatter: number },
      }),
      yAxis: axis(figure.y_label, theme, {
        type: "value",
        nameGap: 44,
        min: figure.bounds?.[0],
        max: figure.bounds?.[1],
      }),
      tooltip: {
        ...common(figure, theme).tooltip,
        trigger: "item",
        formatter: (item) =>
          tip(item.data.label_, [
            [figure.x_label, number(item.value[0])],
            [figure.y_label, number(item.value[1])],
          ]),
      },
      series: figure.series.map((series, i) => ({
        type: "scatter",
        name: series.name,
        symbol: `path://${style(i, theme).marker}`,
        symbolSize: 11,
        itemStyle: { color: style(i, theme).colour },
        data: series.x.map((x, j) => ({
          value: [x, series.y[j]],
          label_: series.labels[j],
          label: { position: (i + j) % 2 ? "bottom" : "top" }, // neighbours need not share a line
        })),
        label: { show: total <= 15, color: theme.ink, formatter: (item) => item.data.label_ },
        labelLayout: { hideOverlap: true, moveOverlap: "shiftY" },
        emphasis: { disabled: true },
      })),
    };
  }

  function heatmap(figure, theme, context, width) {
    const rows = figure.matrices[context.choice(figure)].rows;
    const shade = figure.log ? (value) => Math.log10(value) : (value) => value;
    const real = figure.log ? (value) => 10 ** value : (value) => value;
    const cells = rows.flatMap((row, y) =>
      row.flatMap((value, x) => (value === null ? [] : [[x, y, shade(value), value]])),
    );
    const shades = cells.map((cell) => cell[2]);
    const extent = figure.bounds ?? [least(shades), most(shades)];
    const { left, bottom, cellWidth, tilted } = margins(figure, width);
    const cellHeight = (height(figure, width, theme, context) - bottom - 8) / figure.row_labels.length;
    const names = { color: theme.faint, overflow: "truncate", hideOverlap: true };
    return {
      ...common(figure, theme),
      grid: { left, right: 20, top: 8, bottom },
      xAxis: axis(figure.x_label, theme, {
        type: "category",
        data: figure.column_labels,
        nameGap: tilted ? 68 : 26,
        splitLine: { show: false },
        axisTick: { show: false },
        axisLabel: {
          ...names,
          rotate: tilted ? 45 : 0,
          width: 90,
          interval: tilted ? skipped(cellWidth) : longest(figure.column_labels) * 7 > cellWidth ? "auto" : 0,
        },
      }),
      yAxis: axis(figure.y_label, theme, {
        type: "category",
        data: figure.row_labels,
        inverse: true,
        nameGap: left - 20,
        splitLine: { show: false },
        axisTick: { show: false },
        axisLabel: { ...names, width: left - 32, interval: skipped(cellHeight) },
      }),
      visualMap: {
        type: "continuous",
        dimension: 2,
        min: extent[0],
        max: extent[1] > extent[0] ? extent[1] : extent[0] + 1,
        orient: "horizontal",
        left: "center",
        bottom: 0,
        itemHeight: Math.min(180, width / 3),
        itemWidth: 12,
        inRange: { color: theme.cells },
        textStyle: { color: theme.faint },
        text: [
          number(real(extent[1])),
          width > 480 ? `${figure.value_label}: ${number(real(extent[0]))}` : number(real(extent[0])),
        ],
      },
      tooltip: {
        ...common(figure, theme).tooltip,
        formatter: (item) =>
          tip(`${figure.value_label} ${number(item.value[3])}`, [
            [figure.x_label, figure.column_labels[item.value[0]]],
            [figure.y_label, figure.row_labels[item.value[1]]],
          ]),
      },
      series: [
        {
          type: "heatmap",
          progressive: 0, // all at once: a page in print must be complete
          data: cells,
          encode: { x: 0, y: 1, value: 2 },
          label: {
            show: cellWidth > 36 && (figure.square || (figure.key === "classes" && cellHeight >= 14)),
            formatter: (item) => item.value[3].toFixed(2),
            fontSize: 10,
          },
          emphasis: { itemStyle: { borderColor: theme.ink, borderWidth: 1 } },
        },
      ],
    };
  }

  /* Room for the names of rows and columns; names without room beside each other are tilted, numbers left out. */
  function margins(figure, width) {
    const left = Math.min(160, 46 + longest(figure.row_labels) * 7, width * 0.34);
    const cellWidth = (width - left - 20) / figure.column_labels.length;
    const named = figure.square || figure.column_labels.some((label) => !/^\d+$/.test(label));
    const tilted = named && longest(figure.column_labels) * 7 > cellWidth;
    return { left, bottom: (tilted ? 84 : 46) + 40, cellWidth, tilted };
  }

  /* Names to leave out between two that are shown, so that each has the height of a line. */
  function skipped(room) {
    return Math.max(0, Math.ceil(14 / room) - 1);
  }

  /* Estimates and their intervals, a row each; series of a row below each other. */
  function intervals(figure, theme, context, width) {
    const names = figure.series.map((series) => series.name);
    const left = Math.min(220, 30 + longest(figure.row_labels) * 7, width * 0.4);
    const looks = names.map((_, i) => style(i, theme));
    const values = figure.series.flatMap((series) => [...series.lows, ...series.highs]).filter((v) => v !== null);
    const span = scale(Math.min(0, least(values)), Math.max(0, most(values)));
    const series = figure.series.map(({ name, means, lows, highs }, i) => ({
      type: "custom",
      name,
      itemStyle: { color: looks[i].colour },
      data: means.flatMap((mean, row) => (mean === null ? [] : [[mean, row, lows[row], highs[row]]])),
      encode: { x: [0, 2, 3], y: 1 },
      renderItem: (_, api) => shapes.estimate(api, looks[i], (i - (names.length - 1) / 2) * 14),
    }));
    return {
      ...common(figure, theme),
      legend: { ...legend(figure, names, theme, context, width), itemWidth: 14 },
      grid: { left, right: 24, top: 38, bottom: 44 },
      xAxis: axis(figure.x_label, theme, { type: "value", nameGap: 26, ...span }),
      yAxis: axis("", theme, {
        type: "category",
        data: figure.row_labels,
        inverse: true,
        axisLabel: { color: theme.ink, width: left - 16, overflow: "truncate" },
        axisLine: { onZero: true, lineStyle: { color: theme.ink } },
      }),
      tooltip: {
        ...common(figure, theme).tooltip,
        formatter: (item) =>
          tip(`${figure.row_labels[item.value[1]]}, ${item.seriesName}`, [
            ["difference", number(item.value[0])],
            ["interval", `${number(item.value[2])} to ${number(item.value[3])}`],
          ]),
      },
      series,
    };
  }

  const MAKERS = { curves, bars, scatter, heatmap, intervals };

  function option(figure, theme, context, width) {
    return MAKERS[figure.kind](figure, theme, context, width);
  }

  function height(figure, width, theme, context) {
    if (figure.kind === "heatmap" && figure.square) return Math.round(Math.min(720, Math.max(340, width * 0.75)));
    if (figure.kind === "heatmap")
      return Math.min(640, Math.max(240, 24 + margins(figure, width).bottom + figure.row_labels.length * 16));
    if (figure.kind === "intervals") return 110 + figure.row_labels.length * Math.max(26, 14 * figure.series.length + 8);
    const names = (figure.curves ?? figure.bars ?? []).map((series) => series.name);
    const more = Math.max(0, legendRows(figure, names, theme, context, width) - 1) * LEGEND_ROW;
    return (figure.kind === "bars" ? 380 : 340) + more;
  }

  function renderer(figure) {
    const cells = figure.kind === "heatmap" ? figure.row_labels.length * figure.column_labels.length : 0;
    return cells > CELLS_FOR_CANVAS ? "canvas" : "svg";
  }

  return { height, option, renderer };
})();
