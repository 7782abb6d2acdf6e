"use strict";

/* The page: draws the figures, and the controls that act on all of them. */

(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const root = document.documentElement;
  const methods = report.methods;
  const shown = new Set(report.best);
  const choices = new Map();
  const charts = new Map();
  const PRINT_WIDTH = 660;
  let printing = false;
  let unit = "round";

  const context = {
    shown: (name) => shown.has(name),
    index: (figure, series, position) =>
      series.style ?? (figure.by_method ? report.styles[series.name] : position),
    many: methods.length > report.best.length,
    choice: (figure) => choices.get(figure.key) ?? 0,
    sidebar: () => !printing && matchMedia("(min-width: 1150px)").matches,
  };

  /* --- plots --- */

  function draw(stored, width) {
    const figure = overUnit(stored);
    const element = document.getElementById(`plot-${figure.key}`);
    const wide = width ?? element.clientWidth;
    const theme = themes.theme(report.looks);
    element.style.height = `${plots.height(figure, wide, theme, context)}px`;
    let chart = charts.get(figure.key);
    if (!chart) {
      chart = echarts.init(element, null, { renderer: plots.renderer(figure) });
      charts.set(figure.key, chart);
      if (figure.by_method)
        chart.on("legendselectchanged", (event) => choose(event.name, event.selected[event.name]));
    }
    chart.resize({ width: width ?? "auto", height: "auto" });
    chart.setOption(plots.option(figure, theme, context, wide), { notMerge: true });
  }

  /* Curves over what has been sent, or the time taken, instead of rounds. */
  function overUnit(figure) {
    if (unit === "round" || !figure.by_method || figure.x_label !== "round") return figure;
    const known = figure.curves.filter(({ name }) => report.costs[name]?.[unit]);
    const moved = known.map((curve) => ({ ...curve, x: curve.x.map((x) => x * report.costs[curve.name][unit]) }));
    return { ...figure, x_label: unit, curves: moved };
  }

  function drawAll(width) {
    for (const figure of report.figures) draw(figure, width);
  }

  function watchWidth() {
    const widths = new Map();
    const watcher = new ResizeObserver((entries) => {
      for (const { target, contentRect } of entries) {
        const before = widths.get(target);
        widths.set(target, contentRect.width);
        if (before !== undefined && before !== contentRect.width) draw(figureOf(target.dataset.figure));
      }
    });
    for (const element of document.querySelectorAll(".plot")) watcher.observe(element);
  }

  function figureOf(key) {
    return report.figures.find((figure) => figure.key === key);
  }

  /* --- methods on and off --- */

  function choose(name, on) {
    if (on) shown.add(name);
    else shown.delete(name);
    applyChoice();
  }

  function applyChoice() {
    for (const box of document.querySelectorAll(".methods input")) box.checked = shown.has(box.value);
    for (const figure of report.figures) if (figure.by_method) draw(figure);
  }

  function chooseAll(names) {
    shown.clear();
    for (const name of names) shown.add(name);
    applyChoice();
  }

  function wireMethods() {
    for (const box of document.querySelectorAll(".methods input")) {
      box.checked = shown.has(box.value);
      box.addEventListener("change", () => choose(box.value, box.checked));
    }
    document.querySelector("[data-choose=all]")?.addEventListener("click", () => chooseAll(methods));
    document.querySelector("[data-choose=none]")?.addEventListener("click", () => chooseAll([]));
    document.querySelector("[data-choose=best]")?.addEventListener("click", () => chooseAll(report.best));
  }

  function wireUnit() {
    const select = document.getElementById("unit");
    select?.addEventListener("change", () => {
      unit = select.value;
      applyChoice();
    });
  }

  function paintSwatches() {
    const theme = themes.theme(report.looks);
    for (const swatch of document.querySelectorAll("[data-swatch]")) {
      const { colour, dash, marker } = themes.style(report.styles[swatch.dataset.swatch], theme);
      const line = swatch.querySelector("line");
      line.setAttribute("stroke", colour);
      line.setAttribute("stroke-dasharray", dash === "solid" ? "none" : dash.join(" "));
      const symbol = swatch.querySelector("path");
      symbol.setAttribute("d", marker);
      symbol.setAttribute("fill", colour);
    }
  }

  /* --- the table --- */

  function wireTable() {
    const table = document.querySelector("table.results");
    if (!table) return;
    for (const button of table.querySelectorAll("thead button"))
      button.addEventListener("click", () => sort(table, button));
    const input = document.getElementById("target");
    input.value = report.target;
    input.addEventListener("input", () => reach(table, Number(input.value)));
    reach(table, report.target);
  }

  /* The better end first, then the other way round; what has no value stays below. */
  function sort(table, button) {
    const heading = button.closest("th");
    const column = heading.cellIndex;
    const first = heading.dataset.first;
    const now = heading.getAttribute("aria-sort");
    const next = now === first ? { ascending: "descending", descending: "ascending" }[first] : first;
    for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    for (const body of table.querySelectorAll("tbody:not(.task)"))
      body.append(...[...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], sign)));
  }

  function compare(a, b, sign) {
    const [x, y] = [a.dataset.value ?? "", b.dataset.value ?? ""];
    if (x === "" || y === "") return (x === "") - (y === "");
    const difference = Number(x) - Number(y);
    return sign * (Number.isNaN(difference) ? x.localeCompare(y, undefined, { numeric: true }) : difference);
  }

  /* Rounds until a run's accuracy first was at the target: mean over the runs that got there. */
  function reach(table, target) {
    for (const row of table.querySelectorAll("tr[data-method]")) {
      const runs = report.milestones[Number(row.dataset.method)];
      const rounds = runs
        .map((steps) => steps.find(([, accuracy]) => accuracy >= target)?.[0])
        .filter((r) => r !== undefined);
      const cell = row.querySelector(".reached");
      const mean = rounds.reduce((a, b) => a + b, 0) / rounds.length;
      const part = rounds.length && rounds.length < runs.length ? `${rounds.length} of ${runs.length} runs` : "";
      cell.dataset.value = rounds.length ? mean : "";
      cell.textContent = rounds.length ? Math.round(mean * 10) / 10 : "never";
      for (const text of [spread(rounds, mean), part].filter(Boolean))
        cell.append(" ", Object.assign(document.createElement("span"), { className: "std", textContent: text }));
    }
    for (const element of document.querySelectorAll("[data-target]")) element.textContent = target;
  }

  function spread(values, mean) {
    if (values.length < 2) return "";
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1);
    return `± ${Math.round(Math.sqrt(variance) * 10) / 10}`;
  }

  /* --- downloads --- */

  const COLUMNS = {
    curves: (figure) => [
      ["series", figure.x_label, "value", "std"],
      ...figure.curves.flatMap((curve) => curve.x.map((x, i) => [curve.name, x, curve.y[i], curve.spread?.[i]])),
    ],
    bars: (figure) => [
      ["series", figure.x_label || "category", figure.y_label, "std"],
      ...figure.bars.flatMap((bar) =>
        bar.values.map((value, i) => [bar.name, figure.categories[i], value, bar.spread?.[i]]),
      ),
    ],
    scatter: (figure) => [
      ["group", "class", figure.x_label, figure.y_label],
      ...figure.series.flatMap((series) => series.x.map((x, i) => [series.name, series.labels[i], x, series.y[i]])),
    ],
    intervals: (figure) => [
      ["of", "against", "difference", "low", "high"],
      ...figure.series.flatMap(({ name, means, lows, highs }) =>
        means.map((mean, i) => [name, figure.row_labels[i], mean, lows[i], highs[i]]),
      ),
    ],
    heatmap: (figure) => [
      ["of", figure.y_label, figure.x_label, figure.value_label],
      ...figure.matrices.flatMap(({ name, rows }) =>
        rows.flatMap((row, y) => row.map((value, x) => [name, figure.row_labels[y], figure.column_labels[x], value])),
      ),
    ],
  };

  function csv(rows) {
    const quote = (value) => {
      const plain = value === null || value === undefined ? "" : String(value);
      const text = /^[=+\-@\t\r]./.test(plain) && isNaN(plain) ? `'${plain}` : plain; // no formula in a spreadsheet
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return rows.map((row) => row.map(quote).join(",") + "\n").join("");
  }

  function save(name, type, content) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  /* The figure as it is shown, on the colour of its card. */
  function picture(key, type) {
    const chart = charts.get(key);
    const address = chart.getDataURL({ backgroundColor: themes.theme(report.looks).card });
    if (!address.startsWith("data:image/svg")) return fetchless(address, `${key}.png`);
    if (type === "svg") return fetchless(address, `${key}.svg`);
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [2 * chart.getWidth(), 2 * chart.getHeight()];
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      fetchless(canvas.toDataURL("image/png"), `${key}.png`);
    };
    image.src = address;
  }

  function fetchless(address, name) {
    Object.assign(document.createElement("a"), { href: address, download: name }).click();
  }

  function wireDownloads() {
    for (const button of document.querySelectorAll("[data-csv]")) {
      const figure = figureOf(button.dataset.csv);
      button.addEventListener("click", () =>
        save(`${figure.key}.csv`, "text/csv", csv(COLUMNS[figure.kind](figure))),
      );
    }
    for (const button of document.querySelectorAll("[data-picture]")) {
      const [key, type] = button.dataset.picture.split(":");
      button.addEventListener("click", () => picture(key, type));
    }
    document
      .querySelector("[data-table-csv]")
      ?.addEventListener("click", () => save("table.csv", "text/csv", report.table_csv));
  }

  /* --- choices of a heatmap --- */

  function wireChoices() {
    for (const select of document.querySelectorAll("[data-choice]")) {
      select.addEventListener("change", () => {
        choices.set(select.dataset.choice, select.selectedIndex);
        draw(figureOf(select.dataset.choice));
      });
    }
  }

  /* --- light, dark, print --- */

  function setTheme(name) {
    root.dataset.theme = name;
    const button = document.getElementById("theme");
    button.textContent = name === "dark" ? "Light colours" : "Dark colours";
    paintSwatches();
    drawAll();
  }

  function wireTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
    document
      .getElementById("theme")
      .addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
    let before = root.dataset.theme;
    addEventListener("beforeprint", () => {
      before = root.dataset.theme;
      root.dataset.theme = "light";
      printing = true;
      for (const part of document.querySelectorAll("main details")) part.open = true;
      drawAll(PRINT_WIDTH);
    });
    addEventListener("afterprint", () => {
      printing = false;
      setTheme(before);
    });
  }

  if (matchMedia("(max-width: 1149px)").matches) document.querySelector(".contents").open = false;
  wireMethods();
  wireUnit();
  wireTable();
  wireDownloads();
  wireChoices();
  wireTheme();
  setTheme(root.dataset.theme);
  watchWidth();
  root.dataset.drawn = "true";
})();
