"use strict";

/* How plots look: series, axes, legends, tooltips. */

const themes = (() => {
  const [LEGEND_ROW, MOST_ROWS] = [20, 4];

  /* Of a series by its place in the order of styles, which it keeps whatever else is shown. */
  function style(index, theme) {
    const { dashes, markers } = theme.looks;
    const dash = dashes[index % dashes.length];
    const patterns = decals(theme);
    return {
      colour: theme.series[index % theme.series.length],
      dash: dash.length ? dash : "solid",
      marker: markers[index % markers.length],
      decal: patterns[index % patterns.length],
    };
  }

  function theme(looks) {
    const css = getComputedStyle(document.documentElement);
    const read = (name) => css.getPropertyValue(name).trim();
    return {
      ink: read("--ink"),
      faint: read("--faint"),
      line: read("--line"),
      card: read("--card"),
      series: document.documentElement.dataset.theme === "dark" ? looks.dark : looks.light,
      looks,
      cells: [0, 1, 2].map((i) => read(`--cell-${i}`)),
      font: css.fontFamily.replaceAll('"', "'"), // within quotes in an SVG file
    };
  }

  function number(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e7) return String(value);
    return size >= 0.001 && size < 1e5 ? String(Number(value.toPrecision(4))) : power(value);
  }

  /* The labels of an axis: as many digits as its steps need. */
  function ticks(interval) {
    const digits = interval ? Math.max(0, Math.ceil(-Math.log10(interval) - 1e-9)) : 4;
    return (value) => {
      const size = Math.abs(value);
      return size >= 1e5 || (size && size < 1e-3) ? power(value) : String(Number(value.toFixed(digits)));
    };
  }

  /* 3.2×10³¹ */
  function power(value) {
    const [digits, exponent] = value.toExponential(2).split("e");
    const raised = exponent.replace("+", "").replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);
    return `${Number(digits)}×10${raised}`;
  }

  function withSpread(value, spread) {
    return spread === undefined || spread === null ? number(value) : `${number(value)} ± ${number(spread)}`;
  }

  /* A tooltip is made of elements, never of markup: names come from the user. */
  function tip(title, rows) {
    const box = document.createElement("div");
    box.className = "tip";
    box.append(Object.assign(document.createElement("strong"), { textContent: title }));
    const table = box.appendChild(document.createElement("table"));
    for (const [name, value, colour] of rows) {
      const row = table.insertRow();
      row.insertCell().textContent = name;
      row.insertCell().textContent = value;
      if (colour) row.cells[0].style.borderLeft = `4px solid ${colour}`;
    }
    return box;
  }

  function common(figure, theme) {
    return {
      animation: false,
      backgroundColor: "transparent",
      textStyle: { fontFamily: theme.font, color: theme.ink },
      tooltip: {
        confine: true,
        backgroundColor: theme.card,
        borderColor: theme.line,
        textStyle: { color: theme.ink },
        transitionDuration: 0,
      },
    };
  }

  /* Pixels of a name in a legend: on a phone names have lines of their own. */
  const legendText = (width) => (width < 480 ? width - 50 : 210);

  /* Of many methods the legend lists those that are switched on; the others are in the list beside the plots. */
  function legend(figure, names, theme, context, width) {
    const on = (name) => !figure.by_method || context.shown(name);
    const rows = legendRows(figure, names, theme, context, width);
    return {
      show: rows > 0,
      type: "plain",
      top: 0,
      left: 0,
      itemGap: 8,
      data: context.many ? names.filter(on) : names,
      selected: Object.fromEntries(names.map((name) => [name, on(name)])),
      textStyle: { color: theme.ink, width: legendText(width), overflow: "truncate" },
      inactiveColor: theme.line,
      itemWidth: 34,
      itemHeight: 12,
      tooltip: { show: true },
    };
  }

  /* Lines that the legend takes. Where the list of methods is beside the plots, it is the legend of all that would
     take more than four; elsewhere all names stand above the plot. */
  function legendRows(figure, names, theme, context, width) {
    if (!figure.by_method && names.length < 2) return 0; // the title says it
    const listed = figure.by_method && context.many ? names.filter(context.shown) : names;
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `12px ${theme.font}`;
    let [rows, used] = [listed.length ? 1 : 0, 0];
    for (const name of listed) {
      const item = 34 + 5 + Math.min(legendText(width), pen.measureText(name).width) + 10;
      if (used && used + item > width) [rows, used] = [rows + 1, 0];
      used += item;
    }
    return figure.by_method && context.sidebar() && rows > MOST_ROWS ? 0 : rows;
  }

  function axis(name, theme, more) {
    return {
      name,
      nameLocation: "middle",
      nameTextStyle: { color: theme.faint },
      axisLine: { lineStyle: { color: theme.line } },
      axisLabel: { color: theme.faint, hideOverlap: true },
      axisTick: { lineStyle: { color: theme.line } },
      splitLine: { lineStyle: { color: theme.line, opacity: 0.5 } },
      ...more,
    };
  }

  /* The part of the axis that the values need, with round ends and steps, never beyond what is possible. */
  function scale(lowest, highest, bounds) {
    if (highest === lowest)
      return scale(lowest - (Math.abs(lowest) || 1) / 10, highest + (Math.abs(lowest) || 1) / 10, bounds);
    const span = highest - lowest;
    const power = 10 ** Math.floor(Math.log10(span / 5));
    const interval = [1, 2, 5, 10].map((step) => step * power).find((step) => span / step <= 6);
    const min = Math.max(bounds?.[0] ?? -Infinity, Math.floor(lowest / interval + 1e-9) * interval);
    const max = Math.min(bounds?.[1] ?? Infinity, Math.ceil(highest / interval - 1e-9) * interval);
    return { min: round(min), max: round(max > min ? max : min + interval), interval: round(interval) };
  }

  function round(value) {
    return Number(value.toPrecision(12));
  }

  const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
  const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

  /* 1, 2 and 5 times the powers of ten between two numbers. */
  function logTicks(low, high) {
    const powers = Array.from({ length: 16 }, (_, i) => 10 ** (i - 8));
    return powers.flatMap((power) => [power, 2 * power, 5 * power]).filter((tick) => tick >= low && tick <= high);
  }

  /* The patterns of bars, in the order of fedwcm.reports.styles. What is left out here, ECharts would fill in from a
     palette of its own, which moves on with every series that is shown. */
  function decals(theme) {
    const color = theme.card === "#ffffff" ? "rgba(255,255,255,0.75)" : "rgba(0,0,0,0.55)";
    const lines = { color, symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: 0, symbolSize: 1 };
    const rows = [
      [6, 6],
      [0, 6, 6, 0],
    ];
    return [
      { ...lines, symbol: "none" },
      { ...lines, rotation: -Math.PI / 4 },
      { ...lines, symbol: "circle", dashArrayX: rows, dashArrayY: [5, 0], symbolSize: 0.7 },
      { ...lines, rotation: Math.PI / 4 },
      { ...lines, dashArrayY: [2, 4] },
    ];
  }

  return {
    axis,
    common,
    least,
    legend,
    legendRows,
    LEGEND_ROW,
    logTicks,
    most,
    number,
    scale,
    style,
    theme,
    ticks,
    tip,
    withSpread,
  };
})();
