/* Label: choose folders, have their photos boxed, export the boxes. */

import { $, classCount, count, megabytes, pause, percent, tag } from "./dom.js";
import { announce, ask, guarded, hideProblem, Problem, send, showProblem } from "./server.js";
import { knownClasses, model, onModelChange, ready, refreshModel } from "./model.js";
import { groupChosen } from "./folders.js";
import { skippedMessage, unusable } from "./photo.js";
import { setUpReview, showReview } from "./review.js";

let groups = []; // {name, files, element}
let state = null; // "none", "boxing", "learning", "ready" or "failed", as the server says
let teachGroups = null; // takes classes that the model does not know to the Teach tab

export function addLabelGroups(chosen) {
  for (const [name, files] of chosen) {
    const skipped = files.filter(unusable);
    if (skipped.length) showProblem(skippedMessage(skipped));
    if (skipped.length === files.length) continue;
    const group = { name: name.normalize("NFC"), files: files.filter((file) => !unusable(file)), element: null };
    groups.push(group);
    group.element = row(group);
    $("label-groups").append(group.element);
  }
  update();
}

function row(group) {
  const input = tag("input", { type: "text", value: group.name, maxlength: 200, autocomplete: "off", spellcheck: "false",
    list: "known-classes", oninput: () => { group.name = input.value.trim(); update(); } });
  return tag("li", {}, tag("label", {}, "Class", input), tag("span", { class: "note", "aria-live": "polite" }),
    tag("button", { type: "button", class: "quiet", onclick: () => { remove(group); update(); $("label-choose").focus(); } }, "Remove"));
}

function remove(group) {
  groups = groups.filter((other) => other !== group);
  group.element.remove();
}

const unknownGroups = () => groups.filter((group) => group.name && !knownClasses().includes(group.name));

/** Bring texts and buttons in line with the chosen photos. */
function update() {
  const { limits } = model;
  for (const group of groups) {
    const problem = group.name ? (knownClasses().includes(group.name) ? "" : ". The model does not know this class.") : ". Enter the class.";
    group.element.querySelector(".note").textContent = count(group.files.length, "photo") + problem;
  }
  const files = groups.flatMap((group) => group.files);
  const names = new Set(groups.map((group) => group.name));
  const tooMany = files.length > limits.photos || names.size > limits.classes || files.reduce((sum, file) => sum + file.size, 0) > limits.lesson_bytes;
  const unknown = unknownGroups();
  $("label-unknown").hidden = !unknown.length;
  $("label-unknown").firstElementChild.textContent = `The model does not know ${unknown.map((group) => group.name).slice(0, 3).join(", ")}`
    + `${unknown.length > 3 ? ` and ${unknown.length - 3} more` : ""}. Teach it first: the photos are enough. Then come back to this tab.`;
  $("label-chosen").textContent = !files.length ? "" : tooMany
    ? `Too many at once: the limits are ${limits.classes} classes, ${limits.photos} photos and ${megabytes(limits.lesson_bytes)}.`
    : `${classCount(names.size)}, ${count(files.length, "photo")}`;
  $("label-start").disabled = !files.length || tooMany || unknown.length > 0 || names.has("");
}

async function start(event) {
  event.preventDefault();
  hideProblem();
  $("label-start").disabled = true;
  const form = new FormData();
  for (const group of groups) {
    form.append("class", group.name);
    for (const file of group.files) form.append("photo", file);
  }
  try {
    const onProgress = (fraction) => {
      $("label-chosen").textContent = fraction < 1 ? `Uploading: ${percent(fraction)}` : "Checking the photos …";
    };
    await follow(await send("api/labels", form, onProgress));
    [...groups].forEach(remove);
  } finally {
    update();
  }
}

/** What the server has: also after a reload, and in a second tab. */
export async function showLabels() {
  await ready;
  update();
  if (!isBusy(state)) await follow(await ask("api/labels"), state === "ready");
}

const isBusy = (name) => name === "boxing" || name === "learning";

/** Show the boxing or learning until it is done. */
async function follow(labels, isShown = false) {
  const wasBusy = isBusy(labels.state);
  while (isBusy(labels.state)) {
    show(labels);
    await pause(500);
    labels = await ask("api/labels");
  }
  if (isShown && !wasBusy && labels.state === "ready") return;
  if (wasBusy && labels.learned) await refreshModel();
  show(labels);
  if (labels.problem && (wasBusy || labels.state === "failed")) throw new Problem(`${labels.problem} ${labels.remedy}`);
}

/** Only when asked to: train the model on the boxes that were checked. */
async function learnBoxes() {
  hideProblem();
  await follow(await ask("api/labels/learn", { method: "POST" }));
  $("label-accept").focus();
}

function show(labels) {
  const wasBusy = isBusy(state);
  state = labels.state;
  $("label-form").hidden = isBusy(state) || state === "ready";
  $("label-boxing").hidden = !isBusy(state);
  $("label-review").hidden = state !== "ready";
  const isLearning = state === "learning";
  $("label-busy").textContent = isLearning ? "Learning from boxes" : "Drawing boxes";
  $("label-line").textContent = isLearning ? `${labels.stage}: ${percent(labels.progress)}` : `${labels.num_boxed} of ${count(labels.num_photos, "photo")}`;
  $("label-progress").value = isLearning ? labels.progress : labels.num_boxed / (labels.num_photos || 1);
  if (isBusy(state) && !wasBusy) $("label-busy").focus();
  if (state !== "ready") return;
  const names = labels.skipped.map((photo) => `${photo.name}: ${photo.reason}`);
  $("label-skipped").hidden = !names.length;
  $("label-skipped").lastElementChild.replaceChildren(...names.map((name) => tag("li", {}, name)));
  showReview(labels);
  announce($("label-summary").textContent);
}

async function cancel() {
  if (state !== "learning") return discard();
  return ask("api/labels/learn", { method: "DELETE" }); // the photos stay
}

async function discard() {
  if (state === "ready" && !window.confirm("Discard these photos and their boxes?")) return;
  show(await ask("api/labels", { method: "DELETE" }));
  $("label-choose").focus();
}

export function setUpLabels(teach) {
  teachGroups = teach;
  setUpReview();
  onModelChange(update);
  const choose = (button, input, grouped) => {
    $(button).addEventListener("click", () => $(input).click());
    $(input).addEventListener("change", guarded(async () => {
      const files = [...$(input).files];
      $(input).value = "";
      await ready;
      addLabelGroups(grouped(files));
    }));
  };
  choose("label-choose", "label-folder", groupChosen);
  choose("label-choose-photos", "label-files", (files) => new Map([["", files]]));
  $("label-form").addEventListener("submit", guarded(start));
  $("label-teach").addEventListener("click", guarded(() => teachGroups(new Map(unknownGroups().map((group) => [group.name, group.files])))));
  $("label-cancel").addEventListener("click", guarded(cancel));
  $("label-discard").addEventListener("click", guarded(discard));
  $("label-learn").addEventListener("click", guarded(learnBoxes));
  $("label-format").addEventListener("change", () => { $("label-export").href = `api/labels/export/${$("label-format").value}`; });
}
