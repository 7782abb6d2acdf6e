"use strict";

/* What the library has no series of its own for: bands, error bars, a line at a value, a mark at the edge. */

const shapes = (() => {
  /* A polygon for every stretch on scale: up along mean + spread, back along mean − spread. */
  function band(curve, bounds, colour, limit) {
    const [low, high] = [bounds?.[0] ?? -Infinity, bounds?.[1] ?? Infinity];
    const reach = limit === null ? Infinity : 2 * limit; // enough to leave the plot, and no more than can be drawn
    const edges = curve.x.map((x, i) => {
      const [y, spread] = [curve.y[i], Math.min(curve.spread[i] ?? 0, reach)];
      const isOn = y !== null && !(limit !== null && y > limit);
      return isOn ? [x, Math.max(y - spread, low), Math.min(y + spread, high)] : null;
    });
    const stretches = split(edges);
    return {
      type: "custom",
      name: curve.name,
      silent: true,
      clip: true,
      itemStyle: { color: colour },
      data: stretches.flat(),
      encode: { x: 0, y: [1, 2] },
      z: 1,
      renderItem: (params, api) => {
        if (params.dataIndex !== 0) return null;
        return { type: "group", children: stretches.map((stretch) => polygon(stretch, api, colour)) };
      },
    };
  }

  function polygon(stretch, api, colour) {
    const upper = stretch.map(([x, , high]) => api.coord([x, high]));
    const lower = stretch.map(([x, low]) => api.coord([x, low])).reverse();
    return { type: "polygon", shape: { points: [...upper, ...lower] }, style: { fill: colour, opacity: 0.16 } };
  }

  /* The stretches between gaps. */
  function split(points) {
    const stretches = [[]];
    for (const point of points) {
      if (point === null) stretches.push([]);
      else stretches.at(-1).push(point);
    }
    return stretches.filter((stretch) => stretch.length);
  }

  /* Error bars, in the place that the bar has among those that are switched on. */
  function whiskers(bar, position, count, theme) {
    if (!bar.spread) return null;
    const data = bar.values.flatMap((value, i) =>
      value === null ? [] : [[i, value - bar.spread[i], value + bar.spread[i]]],
    );
    return {
      type: "custom",
      name: bar.name,
      silent: true,
      clip: true,
      data,
      encode: { x: 0, y: [1, 2] },
      itemStyle: { color: theme.ink },
      z: 4,
      renderItem: (_, api) => {
        const drawn = api.currentSeriesIndices().filter((i) => i < count);
        const layout = api.barLayout({ barGap: "8%", barCategoryGap: "22%", count: drawn.length })[
          drawn.indexOf(position)
        ];
        if (!layout) return null;
        const [x, low] = api.coord([api.value(0), api.value(1)]);
        const high = api.coord([api.value(0), api.value(2)])[1];
        const [centre, cap] = [x + layout.offsetCenter, Math.min(4, layout.width / 3)];
        const stroke = (x1, y1, x2, y2) => ({
          type: "line",
          shape: { x1, y1, x2, y2 },
          style: { stroke: theme.ink, lineWidth: 1 },
        });
        return {
          type: "group",
          children: [
            stroke(centre, low, centre, high),
            stroke(centre - cap, high, centre + cap, high),
            stroke(centre - cap, low, centre + cap, low),
          ],
        };
      },
    };
  }

  /* A point with its interval, some pixels below its row. */
  function estimate(api, { colour, marker }, shift) {
    const [x, row] = api.coord([api.value(0), api.value(1)]);
    const [low, high] = [2, 3].map((i) => api.coord([api.value(i), api.value(1)])[0]);
    const y = row + shift;
    const style = { stroke: colour, lineWidth: 2 };
    const stroke = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style });
    const point = { type: "path", shape: { pathData: marker, x: x - 5, y: y - 5, width: 10, height: 10 } };
    const caps = [low, high].map((end) => stroke(end, y - 4, end, y + 4));
    return { type: "group", children: [stroke(low, y, high, y), ...caps, { ...point, style: { fill: colour } }] };
  }

  function markLine(value, theme) {
    return {
      silent: true,
      symbol: "none",
      lineStyle: { color: theme.ink, type: "solid", width: 1 },
      label: { formatter: themes.number(value), position: "end", color: theme.ink },
      data: [{ yAxis: value }],
    };
  }

  /* A triangle at the upper edge where a curve first leaves the scale; none if it does not. */
  function offScale(curve, limit, top, colour) {
    const left = limit === null ? -1 : curve.y.findIndex((y) => y !== null && y > limit);
    if (left < 0) return [];
    return [
      {
        type: "scatter",
        name: curve.name,
        silent: true,
        clip: false,
        symbol: "triangle",
        symbolSize: 11,
        symbolOffset: [0, -6],
        itemStyle: { color: colour },
        data: [[curve.x[left], top]],
        z: 5,
      },
    ];
  }

  /* A circle around a point of a curve. */
  function point(curve, colour) {
    if (!curve.point) return [];
    return [
      {
        type: "scatter",
        name: curve.name,
        silent: true,
        symbol: "circle",
        symbolSize: 14,
        itemStyle: { color: "transparent", borderColor: colour, borderWidth: 2.5 },
        data: [curve.point],
        z: 5,
      },
    ];
  }

  return { band, estimate, markLine, offScale, point, whiskers };
})();
