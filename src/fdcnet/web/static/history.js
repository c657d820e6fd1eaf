/* Model: its classes and its versions. */

import { $, classCount, count, megabytes, percent, rounded, style, tag } from "./dom.js";
import { announce, ask, guarded } from "./server.js";
import { model, refreshModel } from "./model.js";
import { lineChart, table } from "./charts.js";
import { refineOffer } from "./lesson.js";

export async function showHistory() {
  $("versions").replaceChildren(); // what it showed last time may be out of date
  await refreshModel();
  const [versions, classes] = model.version ? await Promise.all([ask("api/history"), ask("api/classes")]) : [[], []];
  $("versions").replaceChildren(...(versions.length
    ? [versionTable(versions), ...accuracyChart(versions)]
    : [tag("p", { class: "note" }, "No lessons yet.")]));
  $("classes").replaceChildren(...model.tasks.flatMap((task) => [
    tag("h3", {}, `Task ${task.task} `, tag("small", {}, `${classCount(task.classes.length)}${task.kept ? "" : " · this version was not kept"}`)),
    tag("ul", { class: "classes" }, classes.map((entry, number) => (entry.task === task.task ? classItem(entry, number) : null))),
  ]));
  $("strip-note").hidden = !classes.some((entry) => entry.history.length);
  $("refine").hidden = !model.can_refine || model.tasks.length < 2; // the first lesson has trained its boxes
  $("refine").replaceChildren(...refineOffer());
  $("run-link").hidden = !model.report;
}

function classItem(entry, number) {
  const thumbnails = Array.from({ length: entry.num_thumbnails }, (_, photo) =>
    tag("img", { src: `api/classes/${number}/photos/${photo}?${model.version}`, alt: "", loading: "lazy" }));
  const learned = entry.num_learned === null ? `${count(entry.num_exemplars, "photo")} kept` : `${count(entry.num_learned, "photo")} learned`;
  const last = entry.history.at(-1);
  return tag("li", {}, tag("div", { class: "row" }, thumbnails), tag("b", {}, entry.name),
    tag("p", { class: "note" }, `${learned}, ${entry.num_held_out} held out`),
    last ? tag("p", { class: "accuracy" }, strip(entry.history), `${percent(last.after / 100)} recognized`)
      : tag("p", { class: "note" }, "Accuracy not measured"));
}

/** One pair of cells per lesson: the class before and after it. */
function strip(history) {
  const cell = (value, text) => (value === null ? null : style(tag("i", { title: text }), "--value", value));
  const text = ({ version, before, after }) =>
    `Version ${version}: ${before === null ? "" : `${percent(before / 100)} before, `}${percent(after / 100)} after`;
  return tag("span", { class: "strip", role: "img", "aria-label": history.map(text).join("; ") },
    history.map((lesson) => tag("span", {}, cell(lesson.before, text(lesson)), cell(lesson.after, text(lesson)))));
}

function versionTable(versions) {
  const rows = versions.map((version) => [
    `${version.version}${version.current ? " · in use" : ""}`,
    new Date(version.created).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }),
    [...version.added, ...version.more.map((name) => `more of ${name}`), version.box_training].filter(Boolean).join(", "),
    version.num_classes,
    version.old_after ? `${rounded(version.old_before?.top1_cls)} → ${rounded(version.old_after.top1_cls)}` : "–",
    rounded(version.new_after?.top1_cls),
    megabytes(version.bytes),
    version.current ? "" : useButton(version.version),
  ]);
  return table("Classification accuracy on held-out photos, in percent: old classes before and after the lesson, and new classes",
    ["version", "created.date", "added.words", "classes", "old classes", "new classes", "size", ""], rows);
}

function useButton(number) {
  return tag("button", { type: "button", "aria-label": `Use version ${number}`, onclick: guarded(async () => {
    await ask(`api/rollback?to=${number}`, { method: "POST" });
    await showHistory();
    announce(`Version ${number} is in use.`);
  }) }, "Use this one");
}

/** Of the version in use and its ancestors. */
function accuracyChart(versions) {
  const line = [];
  for (let at = versions.find((v) => v.current); at; at = versions.find((v) => v.version === at.parent)) line.unshift(at);
  const points = (key) => line.filter((v) => v[key]).map((v) => [v.num_tasks, v[key].top1_cls]);
  const [old, added] = [points("old_after"), points("new_after")];
  if (old.length + added.length < 3) return [];
  const key = tag("ul", { class: "key" }, tag("li", {}, tag("i", { class: "line" }), "old classes"), tag("li", {}, tag("i", { class: "line second" }), "new classes"));
  return [tag("figure", {}, tag("figcaption", { class: "note" }, "Classification accuracy after each task, in percent"), key,
    lineChart([old, added], { label: "Classification accuracy after each task", width: 360, height: 170, top: 100, dots: true }))];
}
