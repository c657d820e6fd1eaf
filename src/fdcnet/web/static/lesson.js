/* Teach: the lesson that is running, or the last one. */

import { $, classCount, count, duration, pause, percent, tag } from "./dom.js";
import { announce, ask, fetchPicture, guarded, hideProblem, Offline, Problem, send, showProblem } from "./server.js";
import { isKnown, model, onModelChange, refreshModel, setLearning } from "./model.js";
import { addCard, addFirstCards, addGroups, cards, lessonForm, removeCard, removeEmptyCards, update } from "./cards.js";
import { beforeAfter, lessonResult, lossCurves, refinementResult } from "./result.js";
import { tryPhotos } from "./predict.js";
import { openTab } from "./tabs.js";

let lesson = null; // as it was last shown
let sentCards = [];
let messagesOpened = false;
let following = false;

async function startLesson(event) {
  event.preventDefault();
  hideProblem();
  $("start").disabled = true;
  try {
    const more = cards.some((card) => isKnown(card.name));
    const sent = [...cards];
    const onProgress = (fraction) => {
      $("lesson-summary").textContent = fraction < 1 ? `Uploading: ${percent(fraction)}` : "Checking the photos …";
    };
    await begin(() => send(`api/lesson?more=${more}`, lessonForm(), onProgress));
    sentCards = sent;
  } finally {
    update();
  }
}

/** Start a lesson and follow it. If another one is running, show that one. */
async function begin(start) {
  messagesOpened = $("lesson-messages").open = $("lesson-curves").open = false;
  try {
    showLesson(await start());
  } catch (error) {
    if (error.status !== 409) throw error;
    showProblem(error);
    await showRunningLesson();
    return;
  }
  $("lesson-title").focus();
  follow();
}

/** A lesson that this or another tab has started. */
export async function showRunningLesson() {
  const now = await ask("api/lesson");
  const isCurrent = now.state === "done" && now.report.version === model.version;
  if (now.state === "learning" || now.state === "lost" || isCurrent) showLesson(now);
  if (now.state === "learning") follow();
  if (now.state === "lost") showProblem(new Problem(`${now.problem} ${now.remedy}`)); // on every tab
}

async function follow() {
  if (following) return;
  following = true;
  try {
    while (await followOnce()) await pause(700);
  } catch (error) {
    showProblem(error);
  } finally {
    following = false;
  }
}

/** Whether there is more to come. */
async function followOnce() {
  let now;
  try {
    now = await ask("api/lesson");
  } catch (error) {
    if (!(error instanceof Offline)) throw error;
    showProblem(error);
    return pause(1300).then(() => true);
  }
  if ($("problem").textContent.includes("does not answer")) hideProblem();
  if (now.state === "none") {
    lesson = null;
    setLearning(false);
    showProblem(new Problem("The server was restarted. The lesson was lost; the model is unchanged."));
    showCards();
    return false;
  }
  if (now.state === "done") await refreshModel();
  showLesson(now);
  if (now.state === "learning") return true;
  announce($("lesson-title").textContent);
  $("lesson-title").focus();
  return false;
}

/** Train the boxes on the photos that the model keeps. Its current version answers meanwhile. */
async function startRefinement() {
  hideProblem();
  await openTab("teach");
  await begin(() => ask("api/lesson/refine", { method: "POST" }));
}

export const refineOffer = () => [
  tag("span", {}, "Classes added after the first lesson start with an average box. Refining trains the boxes of all classes on the "
    + "photos that the model keeps. It takes minutes. The current version answers meanwhile."),
  tag("button", { type: "button", onclick: guarded(startRefinement) }, "Refine the boxes"),
];

function taughtClasses() {
  const names = lesson.classes.map((entry) => entry.name);
  return names.length > 3 ? classCount(names.length) : names.join(", ");
}

function showLesson(now) {
  lesson = now;
  const isRunning = lesson.state === "learning";
  setLearning(isRunning);
  $("lesson-form").hidden = true;
  $("lesson").hidden = false;
  $("lesson-title").textContent = {
    learning: lesson.is_refinement ? "Refining the boxes" : `Learning ${taughtClasses()}`, failed: "The lesson failed", cancelled: "Cancelled", lost: "A lesson was lost",
  }[lesson.state] ?? "";
  $("lesson-line").textContent = isRunning ? progressLine() : {
    cancelled: "The model is unchanged.", failed: `${lesson.problem} ${lesson.remedy}`, lost: `${lesson.problem} ${lesson.remedy}`,
  }[lesson.state] ?? "";
  $("lesson-line").classList.toggle("wrong", lesson.state === "failed" || lesson.state === "lost");
  $("lesson-progress").hidden = $("cancel").hidden = !isRunning;
  $("cancel").disabled = lesson.cancelling;
  $("lesson-progress").value = lesson.progress;
  const curves = lossCurves(lesson.epochs, lesson.loss_names);
  $("lesson-curves").hidden = !curves.length;
  $("lesson-curves").lastElementChild.replaceChildren(...curves);
  showMessages();
  $("outcome").replaceChildren(...(isRunning ? [whileLearning()] : outcome()));
  if (lesson.state === "done") showInUse();
}

function progressLine() {
  if (lesson.cancelling) return "Stopping …";
  const left = lesson.seconds_left === null ? "" : `, about ${duration(lesson.seconds_left)} left`;
  return `${lesson.stage}: ${percent(lesson.progress)}${left}`;
}

function showMessages() {
  const messages = [...lesson.skipped.map((photo) => `Skipped: ${photo.name}: ${photo.reason}`), ...lesson.messages];
  $("lesson-messages").hidden = !messages.length;
  $("lesson-messages").lastElementChild.replaceChildren(...messages.map((message) => tag("li", {}, message)));
  if (!messagesOpened && lesson.skipped.length) messagesOpened = $("lesson-messages").open = true;
}

function whileLearning() {
  const skipped = lesson.skipped.length ? ` ${count(lesson.skipped.length, "photo")} skipped; see the messages below.` : "";
  const text = lesson.is_first
    ? "You can close this page: the lesson continues, and the page finds it again."
    : "You can try photos meanwhile: the previous version answers until the new one is complete.";
  return tag("p", { class: "note" }, text + skipped);
}

/** Whether what a completed lesson made is still in use; only then can it be rolled back. */
function showInUse() {
  const { report, seconds } = lesson;
  const inUse = model.version === report.version;
  const what = lesson.is_refinement ? "refined the boxes" : `learned ${taughtClasses()}`;
  $("lesson-title").textContent = inUse ? what[0].toUpperCase() + what.slice(1) : `Version ${report.version} ${what}`;
  if (inUse) $("lesson-line").textContent = `Took ${duration(seconds)}. The new version is in use.`;
  else $("lesson-line").textContent = `${model.version < report.version ? "Rolled back: v" : "V"}ersion ${model.version} is in use.`;
  if ($("roll-back")) $("roll-back").hidden = !inUse;
}

function outcome() {
  const again = (text, kind) => tag("button", { type: "button", class: kind, onclick: () => {
    showCards();
    $("cards").querySelector("input").focus();
  } }, text);
  const back = lesson.is_refinement ? "Teach new classes" : "Back to the photos";
  if (lesson.state !== "done") return [tag("p", { class: "buttons" }, again(back, "primary"))];
  sentCards.splice(0).filter((card) => cards.includes(card)).forEach(removeCard);
  return [
    tag("p", { class: "buttons" }, tryButton(), again("Teach more", null), lesson.report.can_roll_back ? rollbackButton() : null),
    ...(lesson.is_refinement ? refinementResult(lesson.photos) : lessonResult(lesson.report)),
    ...beforeAfter(lesson.photos),
    model.can_refine && !lesson.report.trained ? tag("p", { class: "notice" }, refineOffer()) : null,
  ].filter(Boolean);
}

function tryButton() {
  return tag("button", { type: "button", class: "primary", id: "try-it", onclick: guarded(async () => {
    if (!lesson.num_examples) {
      await openTab("try");
      return $($("try-drop").hidden ? "choose-others" : "choose-photos").focus();
    }
    const numbers = Array.from({ length: lesson.num_examples }, (_, number) => number);
    const pictures = await Promise.all(numbers.map((number) => fetchPicture(`api/example/photos/${number}`)));
    return tryPhotos(pictures.map((picture, number) => new File([picture], `example-${number + 1}.jpg`, { type: picture.type })));
  }) }, lesson.num_examples ? "Try new photos" : "Try a photo");
}

function rollbackButton() {
  const { version } = lesson.report;
  const button = tag("button", { type: "button", id: "roll-back", onclick: guarded(async () => {
    button.disabled = true;
    try {
      await ask(`api/rollback?of=${version}`, { method: "POST" });
    } finally {
      button.disabled = false;
      button.focus();
      await refreshModel(); // also if it was refused: another version is in use
      if (button.hidden) $("lesson-title").focus();
    }
    announce($("lesson-line").textContent);
  }) }, "Roll back");
  return button;
}

/** From Try: the photo of a wrong answer, on a card that waits for the right name. */
export async function teachPhoto(file) {
  removeEmptyCards();
  const card = addCard("", [file]);
  if (lesson?.state === "learning") throw new Problem("A lesson is running. The photo was added to the next one.");
  showCards();
  await openTab("teach");
  card.element.querySelector("input").focus();
}

/** From Label: folders of classes that the model does not know. */
export async function teachGroups(groups) {
  addGroups(groups);
  if (lesson?.state === "learning") throw new Problem("A lesson is running. The photos were added to the next one.");
  showCards();
  await openTab("teach");
  $("start").focus();
}

export function showCards() {
  $("lesson").hidden = true;
  $("lesson-form").hidden = false;
  addFirstCards();
}

export function setUpLesson() {
  onModelChange(() => { if (lesson?.state === "done") showInUse(); });
  $("lesson-form").addEventListener("submit", guarded(startLesson));
  $("start-example").addEventListener("click", guarded(() => begin(() => ask("api/lesson/example", { method: "POST" }))));
  $("cancel").addEventListener("click", guarded(async () => showLesson(await ask("api/lesson", { method: "DELETE" }))));
}
