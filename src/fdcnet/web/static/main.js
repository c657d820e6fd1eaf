/* The page as a whole: tabs, drop and paste, and the start. */

import { $ } from "./dom.js";
import { guarded, hideProblem } from "./server.js";
import { knownClasses, loadModel, model, onModelChange, ready, refreshModel } from "./model.js";
import { setUpPredict, tryPhotos } from "./predict.js";
import { addGroups, addPastedPhotos, setUpCards } from "./cards.js";
import { setUpLesson, showCards, showRunningLesson, teachGroups, teachPhoto } from "./lesson.js";
import { addLabelGroups, setUpLabels, showLabels } from "./labels.js";
import { groupDropped } from "./folders.js";
import { showHistory } from "./history.js";
import { currentTab } from "./tabs.js";

function showPart() {
  const wanted = currentTab();
  const isUntaught = model && wanted !== "teach" && !knownClasses().length;
  $("untaught").hidden = !isUntaught;
  for (const link of document.querySelectorAll("nav a")) {
    const isCurrent = link.hash === `#${wanted}`;
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    $(`part-${link.hash.slice(1)}`).hidden = !isCurrent || isUntaught;
  }
}

async function showTab() {
  showPart();
  hideProblem();
  await ready;
  const wanted = currentTab();
  if (wanted === "teach" && $("lesson").hidden) showCards();
  if (wanted === "label") await showLabels();
  if (wanted === "model") await showHistory();
}

const hasFiles = (event) => event.dataTransfer.types.includes("Files"); // and not text, which fields take themselves

async function takeDrop(transfer) {
  const tab = currentTab();
  const groups = await groupDropped([...transfer.items]);
  await ready;
  if (tab === "teach" && !$("lesson-form").hidden) addGroups(groups);
  if (tab === "label" && !$("label-form").hidden) addLabelGroups(groups);
  if (tab === "try" || tab === "model") await tryPhotos([...groups.values()].flat());
}

async function takePaste(files) {
  if (!files.length) return;
  const tab = currentTab();
  await ready;
  if (tab === "teach" && !$("lesson-form").hidden) addPastedPhotos(files);
  if (tab === "label" && !$("label-form").hidden) addLabelGroups(new Map([["", files]]));
  if (tab === "try" || tab === "model") await tryPhotos(files);
}

/** Another tab or the command line may have changed the model. */
async function refresh() {
  if (document.hidden) return;
  await (model ? refreshModel() : loadModel()); // the first request may have failed
  if (model.learning) await showRunningLesson();
}

function listen() {
  onModelChange(showPart); // it may have learned its first classes
  setUpPredict(teachPhoto);
  setUpCards();
  setUpLesson();
  setUpLabels(teachGroups);
  document.addEventListener("paste", guarded((event) => takePaste([...(event.clipboardData?.files ?? [])])));
  for (const kind of ["dragenter", "dragover"]) { // both: or else a drop right after entering an element is lost
    document.addEventListener(kind, (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      document.body.classList.add("dragging");
    });
  }
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
  document.addEventListener("drop", guarded(async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    document.body.classList.remove("dragging");
    await takeDrop(event.dataTransfer);
  }));
  document.addEventListener("visibilitychange", guarded(refresh));
  $("problem").lastElementChild.addEventListener("click", hideProblem);
  window.addEventListener("hashchange", guarded(showTab));
}

guarded(async () => {
  listen();
  await loadModel();
  await showTab();
  if (model.version === 0 && !location.hash) location.hash = "#teach";
  await showRunningLesson();
})();
