/* Try: one photo with its heat map, box and best classes. */

import { $, classCount, percent, rectangle, style, tag } from "./dom.js";
import { announce, ask, guarded, hideProblem, Problem, showProblem } from "./server.js";
import { model, onModelChange, ready } from "./model.js";
import { downloadAnnotated, photoUrl, skippedMessage, unusable } from "./photo.js";
import { largestRegion, paintMap, resizeMap } from "./heat.js";
import { openTab } from "./tabs.js";
import { hideGrid, returnToGrid, showGrid } from "./grid.js";

const shown = { file: null, predictions: new Map(), prediction: null, chosenClass: null, afterTask: null, threshold: null, request: 0 };

export async function tryPhotos(files) {
  await ready;
  if (!model.version) throw new Problem(model.learning ? "The model is learning its first classes. Try photos when it is done."
    : "The model knows no classes yet. Teach it two classes first.");
  await openTab("try");
  hideProblem();
  const usable = files.filter((file) => !unusable(file));
  if (usable.length < files.length) showProblem(skippedMessage(files.filter(unusable)));
  if (!usable.length) return;
  if (usable.length === 1) {
    hideGrid();
    $("try-drop").hidden = !$("result").hidden; // until the photo can be shown, which may fail
    return tryPhoto(usable[0]);
  }
  close();
  return showGrid(usable, guarded(tryPhoto));
}

async function tryPhoto(file) {
  const request = ++shown.request;
  $("stage").classList.add("waiting");
  const url = await photoUrl(file).catch((error) => {
    if (request === shown.request) $("stage").classList.remove("waiting");
    throw error;
  });
  if (request !== shown.request) return;
  URL.revokeObjectURL($("photo").src);
  Object.assign(shown, { file, predictions: new Map(), prediction: null, chosenClass: null });
  clearOverlay();
  $("photo").src = url;
  await $("photo").decode().catch(() => null);
  if (request !== shown.request) return;
  style($("stage"), "--aspect", $("photo").naturalWidth / $("photo").naturalHeight);
  $("try-drop").hidden = true;
  $("result").hidden = false;
  await predict();
}

function close() {
  shown.request++;
  $("result").hidden = $("try-drop").hidden = true;
}

/** Show the prediction for the chosen class and task, unless something newer was asked meanwhile. */
async function predict() {
  const { file, chosenClass, afterTask } = shown;
  const request = ++shown.request;
  const key = `${model.version} ${afterTask} ${chosenClass}`;
  $("stage").classList.add("waiting");
  try {
    if (!shown.predictions.has(key)) {
      const query = new URLSearchParams({ heat: true });
      if (chosenClass !== null) query.set("class", chosenClass);
      if (afterTask !== null) query.set("after", afterTask);
      const prediction = await ask(`api/predict?${query}`, { method: "POST", body: file });
      prediction.map = resizeMap(prediction.heat, prediction.side);
      shown.predictions.set(key, prediction);
    }
    if (request === shown.request) show(shown.predictions.get(key));
  } catch (error) {
    if (request !== shown.request) return;
    if (shown.prediction === null) {
      $("result").hidden = true;
      if (!returnToGrid()) $("try-drop").hidden = false;
    }
    throw error;
  } finally {
    if (request === shown.request) $("stage").classList.remove("waiting");
  }
}

function show(prediction) {
  shown.prediction = prediction;
  const isCurrent = prediction.answered_by === "current";
  const best = prediction.top[0];
  $("answer-when").textContent = isCurrent ? "Best class" : `Best class after task ${shown.afterTask}`;
  $("answer-class").textContent = best.class;
  $("answer-score").textContent = `Score ${percent(best.score)} · learned in task ${best.task}`;
  $("answer-doubt").hidden = !prediction.unfamiliar;
  $("answer-note").textContent = `The model always picks one of the ${classCount(prediction.num_classes)} it `
    + `${isCurrent ? "knows" : "knew"}. The score is not a probability.`;
  showGuesses(prediction);
  $("after-note").textContent = pastNote(prediction);
  style($("stage"), "--aspect", prediction.width / prediction.height);
  $("photo").alt = `Your photo with a box around ${prediction.class}`;
  paintMap($("heat"), prediction.map, prediction.side);
  drawBox();
  if (!$("part-try").hidden) announce(`${best.class}, ${percent(best.score)}${prediction.unfamiliar ? ", but it may be none of the known classes" : ""}`);
}

function showGuesses(prediction) {
  const choose = (name) => guarded(() => { shown.chosenClass = name; return predict(); });
  const guesses = prediction.top.map((guess) =>
    tag("label", { class: "guess" },
      tag("input", { type: "radio", name: "guess", value: guess.class, checked: guess.class === prediction.class,
        onchange: choose(guess.class) }),
      tag("span", {}, guess.class, " ", tag("small", {}, `task ${guess.task}`)),
      tag("span", { class: "score" }, percent(guess.score)),
      style(tag("i", { "aria-hidden": "true" }), "--score", guess.score)));
  const focused = document.activeElement?.name === "guess";
  $("top").lastElementChild.replaceChildren(...guesses);
  if (focused) $("top").querySelector(":checked")?.focus();
}

function pastNote({ answered_by: answeredBy, num_classes: numClasses }) {
  const known = classCount(numClasses);
  if (answeredBy === "current") return `The current version: ${known}.`;
  if (answeredBy === "kept") return `The version saved after that task: ${known}.`;
  return `That version was not kept. The current version answers, limited to the ${known} known then.`;
}

function resetPast() {
  const last = model.tasks.length;
  $("past").hidden = last < 2;
  $("no-past").hidden = last !== 1;
  $("after").max = last; // first: it limits the value
  $("after").value = last;
  shown.afterTask = null;
  $("after-value").textContent = `${last} of ${last}`;
}

function chooseTask() {
  const task = Number($("after").value), last = model.tasks.length;
  $("after-value").textContent = `${task} of ${last}`;
  shown.afterTask = task < last ? task : null;
  shown.chosenClass = null;
  return predict();
}

function currentBox() {
  const { prediction } = shown;
  const threshold = $("threshold").value / 100;
  if (Math.abs(threshold - prediction.threshold) < 0.005) return prediction.box;
  const scale = [prediction.width / prediction.side, prediction.height / prediction.side];
  return largestRegion(prediction.map, prediction.side, threshold).map((value, i) => value * scale[i % 2]);
}

function drawBox() {
  if (!shown.prediction) return;
  const box = currentBox();
  $("boxes").setAttribute("viewBox", `0 0 ${shown.prediction.width} ${shown.prediction.height}`);
  $("boxes").setAttribute("preserveAspectRatio", "none");
  $("boxes").replaceChildren(rectangle(box, "shade"), rectangle(box, "found"));
}

function clearOverlay() {
  $("boxes").replaceChildren();
  $("heat").width = 0;
}

function applySliders() {
  $("opacity-value").textContent = `${$("opacity").value} %`;
  $("threshold-value").textContent = `${$("threshold").value} %`;
  $("heat").style.opacity = $("opacity").value / 100;
  drawBox();
}

function download() {
  return downloadAnnotated({
    image: $("photo"), heat: $("heat"), opacity: $("opacity").value / 100,
    prediction: shown.prediction, box: currentBox(), fileName: shown.file.name,
  });
}

/** Another version is in use: its answers replace the old ones. */
function predictAgain() {
  resetPast();
  if (shown.threshold !== model.threshold) resetThreshold();
  if ($("result").hidden) return;
  Object.assign(shown, { predictions: new Map(), prediction: null, chosenClass: null });
  clearOverlay();
  guarded(predict)();
}

export function setUpPredict(teachPhoto) {
  onModelChange(predictAgain);
  const choose = (button, input) => $(button).addEventListener("click", () => $(input).click());
  choose("choose-photos", "photo-files");
  choose("choose-others", "photo-files");
  choose("choose-more", "photo-files");
  choose("take-photo", "camera");
  choose("take-another", "camera");
  for (const input of [$("photo-files"), $("camera")]) {
    input.addEventListener("change", guarded(async () => {
      const files = [...input.files];
      input.value = "";
      if (files.length) await tryPhotos(files);
    }));
  }
  $("opacity").addEventListener("input", applySliders);
  $("threshold").addEventListener("input", applySliders);
  $("after").addEventListener("input", guarded(chooseTask));
  $("download").addEventListener("click", guarded(download));
  $("teach-this").addEventListener("click", guarded(() => teachPhoto(shown.file)));
  $("back-to-grid").addEventListener("click", () => { close(); returnToGrid(); });
}

function resetThreshold() {
  shown.threshold = model.threshold;
  $("threshold").value = Math.round(100 * model.threshold);
  applySliders();
}
