/* What came of a lesson: accuracy, photos before and after, loss curves. */

import { percent, rectangle, rounded, shape, style, tag } from "./dom.js";
import { lineChart, table } from "./charts.js";

/** `names`: the losses in words. */
export function lossCurves(epochs, names) {
  const lines = new Map(); // by phase and name
  for (const { phase, epoch, epochs: last, losses } of epochs) {
    for (const [name, value] of Object.entries(losses)) {
      const key = `${phase} ${name}`;
      if (!lines.has(key)) lines.set(key, { name, last, points: [] });
      lines.get(key).points.push([epoch, value]);
    }
  }
  return [...lines.values()].map(({ name, last, points }) =>
    tag("figure", {}, tag("figcaption", {}, names[name], tag("small", {}, names[name] === name ? "" : name)),
      lineChart([points], { label: `${names[name]}: now ${points.at(-1)[1].toPrecision(3)}`, width: 240, height: 110, last })));
}

export function lessonResult(report) {
  const rows = [["Old classes, before", report.old_before], ["Old classes, now", report.old_after], ["New classes", report.new_after]];
  const shown = rows.filter(([, accuracy]) => accuracy);
  const unmeasured = (what) => tag("p", { class: "note" }, `${what} was not measured: that needs at least ten photos of a class, two of which are held out.`);
  const missing = report.added.filter((name) => report.new_after?.by_class[name] === undefined);
  if (!shown.length) return [unmeasured("Accuracy")];
  const parts = [["class right", "top1_cls"], ["box right", "gt_known"], ["both right", "top1_loc"]];
  const known = parts.filter(([, key]) => shown.some(([, accuracy]) => accuracy[key] !== null)); // boxes need true boxes
  const results = table("Accuracy on photos not used for learning, in percent", ["", ...known.map(([name]) => name), "photos"],
    shown.map(([name, accuracy]) => [name, ...known.map(([, key]) => rounded(accuracy[key])), accuracy.num_photos]));
  if (!missing.length) return [results];
  const names = missing.length > 3 ? `${missing.length} new classes` : missing.join(", ");
  return [results, unmeasured(`The accuracy of ${missing.length === report.added.length ? "new classes" : names}`)];
}

/** Class accuracy is not measured again: a refinement does not change it. */
export function refinementResult(photos) {
  const text = photos.length ? "Compare the boxes below, and roll back if the old ones were better."
    : "No photos are held out to compare the boxes. Try some, and roll back if the old boxes were better.";
  return [tag("p", {}, `Photos are classified as before; only the boxes have changed. ${text}`)];
}

export function beforeAfter(photos) {
  const isRefinement = photos.every((photo) => photo.kind === "old");
  const groups = [["new", "New photos"], ["learned", "Photos used for learning"], ["old", isRefinement ? "Held-out photos" : "Old classes"]];
  const shown = groups.filter(([kind]) => photos.some((photo) => photo.kind === kind));
  if (!shown.length) return [];
  const hasBefore = photos.some((photo) => photo.before?.box);
  const legend = tag("ul", { class: "key" }, tag("li", {}, tag("i"), hasBefore ? "now" : "box"),
    hasBefore ? tag("li", {}, tag("i", { class: "was" }), "before") : null);
  return shown.flatMap(([kind, title], i) => [
    tag("h3", {}, title), i ? null : legend,
    tag("div", { class: "pairs" }, photos.map((photo, at) => (photo.kind === kind ? picture(photo, at) : null))),
  ]).filter(Boolean);
}

function picture(photo, at) {
  const stage = tag("div", { class: "stage" }, tag("img", { src: `api/lesson/photos/${at}?${Date.now()}`, alt: photo.class }));
  const boxes = [[photo.before, "was"], [photo.after, "found"]].filter(([answer]) => answer?.box);
  const caption = (when, answer) => answer && tag("span", {}, when,
    tag("b", { class: answer.class === photo.class ? "right" : "wrong" }, answer.class), ` ${percent(answer.score)}`, tag("br"));
  stage.append(shape("svg", { viewBox: `0 0 ${photo.width} ${photo.height}`, "aria-hidden": "true" },
    boxes.flatMap(([answer, kind]) => [rectangle(answer.box, "shade"), rectangle(answer.box, kind)])));
  return tag("figure", {}, style(stage, "--aspect", photo.width / photo.height),
    tag("figcaption", {}, caption(photo.before ? "now " : "", photo.after), caption("before ", photo.before)));
}
