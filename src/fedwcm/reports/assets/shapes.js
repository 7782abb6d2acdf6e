"use strict";

/* What the library has no series of its own for: bands, error bars, a line at a value. */

const shapes = (() => {
  /* One polygon: up along mean + spread, back along mean − spread. */
  function band(curve, bounds, colour) {
    const known = curve.x.map((x, i) => [x, curve.y[i], curve.spread[i]]).filter((p) => p[1] !== null);
    const edges = known.map(([x, y, s]) => [
      x,
      Math.max(y - s, bounds?.[0] ?? -Infinity),
      Math.min(y + s, bounds?.[1] ?? Infinity),
    ]);
    return {
      type: "custom",
      name: curve.name,
      silent: true,
      clip: true,
      itemStyle: { color: colour },
      data: edges,
      encode: { x: 0, y: [1, 2] },
      z: 1,
      renderItem: (params, api) => {
        if (params.dataIndex !== 0) return null;
        const upper = edges.map(([x, , high]) => api.coord([x, high]));
        const lower = edges.map(([x, low]) => api.coord([x, low])).reverse();
        return {
          type: "polygon",
          shape: { points: [...upper, ...lower] },
          style: { fill: colour, opacity: 0.16 },
        };
      },
    };
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

  function markLine(value, theme) {
    return {
      silent: true,
      symbol: "none",
      lineStyle: { color: theme.ink, type: "solid", width: 1 },
      label: { formatter: themes.number(value), position: "insideEndTop", color: theme.ink },
      data: [{ yAxis: value }],
    };
  }

  return { band, markLine, whiskers };
})();
