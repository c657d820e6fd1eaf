/* Tables and charts. */

import { shape, tag } from "./dom.js";

/** A column "added.words" gets the class words. */
export function table(caption, columns, rows) {
  const heads = columns.map((column) => column.split("."));
  const cell = (value, i) => (i ? tag("td", { class: heads[i][1] ?? null, "data-head": heads[i][0] }, value) : tag("th", { scope: "row" }, value));
  const head = ([name, kind]) => (name ? tag("th", { scope: "col", class: kind ?? null }, name) : tag("td"));
  return tag("div", {}, tag("p", { class: "caption" }, caption), tag("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    tag("table", { class: heads.length > 5 ? "stack" : null }, tag("thead", {}, tag("tr", {}, heads.map(head))),
      tag("tbody", {}, rows.map((row) => tag("tr", {}, row.map(cell)))))));
}

export function lineChart(series, { label, width, height, top = null, last = null, dots = false }) {
  const all = series.flat();
  const low = Math.min(0, ...all.map(([, y]) => y));
  const high = top ?? (Math.max(0, ...all.map(([, y]) => y)) || (low < 0 ? 0 : 1));
  const [from, to] = [Math.min(...all.map(([x]) => x)), last ?? Math.max(...all.map(([x]) => x))];
  const left = 34, bottom = height - 18;
  const px = (x) => (to > from ? left + ((x - from) / (to - from)) * (width - left - 6) : left + 4).toFixed(1);
  const py = (y) => (bottom - ((y - low) / (high - low)) * (bottom - 8)).toFixed(1);
  const word = (x, y, text, anchor) => shape("text", { x, y, "text-anchor": anchor }, text);
  const short = (value) => (Math.abs(value) >= 10 || value === 0 ? value.toFixed(0) : value.toPrecision(2));
  return shape("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    shape("line", { x1: left, x2: width - 6, y1: py(low), y2: py(low), class: "grid" }),
    shape("line", { x1: left, x2: width - 6, y1: py(high), y2: py(high), class: "grid" }),
    word(left - 6, Number(py(high)) + 4, short(high), "end"), word(left - 6, Number(py(low)) + 4, short(low), "end"),
    word(px(from), height - 4, from, "middle"), to > from ? word(px(to), height - 4, to, "end") : null,
    series.map((points, i) => [
      shape("polyline", { points: points.map(([x, y]) => `${px(x)},${py(y)}`).join(" "), class: i ? "line second" : "line" }),
      dots || points.length === 1 ? points.map(([x, y]) => shape("circle", { cx: px(x), cy: py(y), r: 3.5, class: i ? "second" : null })) : [],
    ]).flat(2));
}
