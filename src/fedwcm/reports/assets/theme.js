"use strict";

/* How plots look: series, axes, legends, tooltips. Series differ by colour, dash, marker and pattern, so that they
   can be told apart in print and by colour-blind readers. */

const themes = (() => {
  const DASHES = ["solid", [7, 4], [2, 3], [10, 3, 2, 3], [4, 2, 4, 6]];
  const MARKERS = ["circle", "rect", "triangle", "diamond", "emptyCircle", "emptyRect"];
  const COLOURS = 7;

  /* Seven colours, five dashes and six markers have no common factor: neighbours differ in all three. */
  function style(index, theme) {
    return {
      colour: theme.series[index % COLOURS],
      dash: DASHES[index % DASHES.length],
      marker: MARKERS[index % MARKERS.length],
    };
  }

  function theme() {
    const css = getComputedStyle(document.documentElement);
    const read = (name) => css.getPropertyValue(name).trim();
    return {
      ink: read("--ink"),
      faint: read("--faint"),
      line: read("--line"),
      card: read("--card"),
      series: Array.from({ length: COLOURS }, (_, i) => read(`--s${i}`)),
      cells: [0, 1, 2].map((i) => read(`--cell-${i}`)),
      font: css.fontFamily,
    };
  }

  function number(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e7) return String(value);
    return size >= 0.001 && size < 1e5 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
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
    for (const cells of rows) {
      const row = table.insertRow();
      for (const text of cells) row.insertCell().textContent = text;
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

  /* Of many methods the legend lists those that are switched on; the others are in the list beside the plots. */
  function legend(figure, names, theme, context) {
    const on = (name) => !figure.by_method || context.shown(name);
    return {
      type: "scroll",
      top: 0,
      left: 0,
      right: 0,
      data: context.many ? names.filter(on) : names,
      selected: Object.fromEntries(names.map((name) => [name, on(name)])),
      textStyle: { color: theme.ink, width: 210, overflow: "truncate" },
      inactiveColor: theme.line,
      pageTextStyle: { color: theme.ink },
      pageIconColor: theme.ink,
      pageIconInactiveColor: theme.line,
      itemWidth: 34,
      itemHeight: 9,
      tooltip: { show: true },
    };
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
    const powers = Array.from({ length: 12 }, (_, i) => 10 ** (i - 8));
    return powers.flatMap((power) => [power, 2 * power, 5 * power]).filter((tick) => tick >= low && tick <= high);
  }

  function decals(theme) {
    const base = { color: theme.card === "#ffffff" ? "rgba(255,255,255,0.75)" : "rgba(0,0,0,0.55)" };
    return [
      { ...base, symbol: "none" },
      { ...base, symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: Math.PI / 4 },
      {
        ...base,
        symbol: "circle",
        dashArrayX: [
          [6, 6],
          [0, 6, 6, 0],
        ],
        dashArrayY: [5, 0],
        symbolSize: 0.7,
      },
      { ...base, symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -Math.PI / 4 },
      { ...base, symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 4] },
    ];
  }

  return {
    axis,
    common,
    decals,
    least,
    legend,
    logTicks,
    markers: MARKERS,
    most,
    number,
    scale,
    style,
    theme,
    tip,
    withSpread,
  };
})();
