/* What the page knows about the served model. */

import { $, classCount, count, tag } from "./dom.js";
import { ask } from "./server.js";

export let model = null; // the answer of api/model
export let ready = null; // resolves with the first answer: a photo may be chosen earlier
const watchers = [];

/** Called when another version is in use. */
export const onModelChange = (watcher) => watchers.push(watcher);
export const knownClasses = () => model?.tasks.flatMap((task) => task.classes) ?? [];
/** The user's own model has no classes yet. */
export const isNew = () => model.version === 0 || model.is_example;
export const isKnown = (name) => !isNew() && knownClasses().includes(name);

export async function refreshModel() {
  const before = model;
  model = await ask("api/model");
  const classes = knownClasses();
  document.title = `${model.name} · fdcnet`;
  $("model-name").textContent = model.name;
  showSummary();
  $("min-photos").textContent = model.limits.min_photos;
  $("known-classes").replaceChildren(...classes.filter(isKnown).map((name) => tag("option", { value: name })));
  const isSame = before?.version === model.version && before.is_example === model.is_example;
  if (isSame && before.tasks.length === model.tasks.length) return;
  watchers.forEach((watcher) => watcher());
}

/** A lesson has begun or ended: the page knows that before it asks about the model again. */
export function setLearning(isLearning) {
  if (!model || model.learning === isLearning) return;
  model.learning = isLearning;
  showSummary();
}

function showSummary() {
  $("model-summary").textContent = summary(knownClasses().length);
  const [text, link] = $("untaught").children;
  text.textContent = model.learning ? "The model is learning its first classes. You can try photos when it is done." : "This model knows no classes yet.";
  link.textContent = model.learning ? "Show the lesson" : "Teach it first";
}

function summary(numClasses) {
  if (model.is_example) return "An example with generated photos. Your own first lesson replaces it.";
  if (!numClasses && model.learning) return "Learning its first classes";
  if (!numClasses) return "Knows no classes yet. Teach it two to begin.";
  return `Knows ${classCount(numClasses)}, learned in ${count(model.tasks.length, "task")}`;
}

export function loadModel() {
  ready = refreshModel();
  return ready;
}
