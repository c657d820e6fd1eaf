/* Label: check the boxes one by one, least certain first. */

import { $, count, percent, rectangle, shape, style, tag } from "./dom.js";
import { announce, ask, guarded } from "./server.js";
import { BoxEditor } from "./boxeditor.js";
import { currentTab } from "./tabs.js";

let photos = []; // as api/labels lists them, each with its tile
let at = 0;
let learned = null; // what the model has learned from checked boxes
let editor = null;
let saved = Promise.resolve(); // when the last change is on the server

export function showReview(labels) {
  learned = labels.learned;
  photos = labels.photos.map((photo) => ({ ...photo, tile: null }));
  for (const photo of photos) photo.tile = tileOf(photo);
  $("label-tiles").replaceChildren(...photos.map((photo) => photo.tile));
  photos.forEach(drawTile);
  open(Math.max(0, photos.findIndex((photo) => !photo.reviewed)));
}

function open(number) {
  photos[at]?.tile.removeAttribute("aria-current");
  at = number;
  const photo = photos[at];
  photo.tile.setAttribute("aria-current", "true");
  $("label-photo").src = `api/labels/photos/${photo.number}`;
  $("label-photo").alt = `${photo.name} with the box of ${photo.class}`;
  style($("label-stage"), "--aspect", photo.width / photo.height);
  editor.show(photo.box, photo.width, photo.height);
  $("label-class").textContent = photo.class;
  $("label-previous").disabled = at === 0;
  $("label-next").disabled = at === photos.length - 1;
  describe();
}

function describe() {
  const photo = photos[at];
  $("label-place").textContent = `Photo ${at + 1} of ${photos.length}`;
  $("label-state").textContent = `${stateOf(photo)} · ${photo.name.split("/").at(-1)}`;
  $("label-reject").disabled = photo.reviewed && !photo.box;
  const [checked, rejected] = [photos.filter((each) => each.reviewed), photos.filter((each) => !each.box)];
  const ofThem = rejected.length ? `, ${rejected.length} of them rejected` : "";
  $("label-summary").textContent = `${count(photos.length, "photo")}: ${checked.length || "none"} checked${ofThem}.`;
  $("label-export").toggleAttribute("inert", rejected.length === photos.length);
  describeLearning(checked.length - rejected.length, photos.length - checked.length);
}

function describeLearning(numBoxes, numOthers) {
  const done = learned
    ? `Version ${learned.version} learned from ${boxCount(learned.num_boxes)} and drew ${count(learned.num_redrawn, "other box", "other boxes")} again. To undo it, use an earlier version in the Model tab. `
    : "Checked boxes do not train the model unless you ask for it. ";
  $("label-learning").firstElementChild.textContent = done + (numBoxes
    ? `Learn from ${boxCount(numBoxes)} to make a new version${numOthers ? `, which draws the other ${numOthers} again` : ""}. Only boxes change, not classes.`
    : "Accept or correct some boxes first.");
  $("label-learn").disabled = !numBoxes;
}

const boxCount = (number) => count(number, "checked box", "checked boxes");

function stateOf(photo) {
  if (!photo.box) return "Rejected";
  if (!photo.reviewed) return `Confidence ${percent(photo.confidence)}`;
  return String(photo.box) === String(photo.found) ? "Accepted" : "Corrected";
}

function tileOf(photo) {
  return tag("button", { type: "button", class: "tile", onclick: () => {
    open(photos.indexOf(photo));
    $("label-stage").scrollIntoView({ block: "nearest" });
  } });
}

function drawTile(photo) {
  const { width, height, box } = photo;
  const stage = style(tag("span", { class: "stage" },
    tag("img", { src: `api/labels/photos/${photo.number}?small=true`, alt: "", loading: "lazy" }),
    shape("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, box ? [rectangle(box, "shade"), rectangle(box, "found")] : [])),
  "--aspect", width / height);
  photo.tile.replaceChildren(stage, tag("b", {}, photo.class), tag("small", {}, stateOf(photo)));
}

/** Accept (the box as it is), correct (another box) or reject (null): one after the other, so that the last one stays. */
function save(photo, box) {
  saved = saved.catch(() => null).then(() => put(photo, box));
  return saved;
}

async function put(photo, box) {
  const body = JSON.stringify({ box });
  const headers = { "content-type": "application/json" };
  Object.assign(photo, await ask(`api/labels/photos/${photo.number}`, { method: "PUT", body, headers }));
  const before = photo.tile.querySelector("img");
  drawTile(photo);
  photo.tile.querySelector("img").replaceWith(before); // it is loaded already
  describe();
}

async function saveAndGoOn(box) {
  const photo = photos[at];
  await save(photo, box);
  const message = stateOf(photo);
  const left = [...photos.keys()].filter((number) => !photos[number].reviewed);
  if (left.length) open(left.find((number) => number > at) ?? left[0]);
  else editor.show(photo.box, photo.width, photo.height);
  announce(left.length ? `${message}. ${$("label-place").textContent}.` : `${message}. All photos are checked.`);
}

const accept = () => saveAndGoOn(photos[at].box ?? photos[at].found);
const reject = () => saveAndGoOn(null);
const move = (step) => { if (photos[at + step]) open(at + step); };
const KEYS = { a: accept, r: reject, n: () => move(1), p: () => move(-1) };

function takeKey(event) {
  const work = KEYS[event.key.toLowerCase()];
  const isTyping = event.target.closest?.("input, select, textarea");
  if (!work || isTyping || event.ctrlKey || event.altKey || event.metaKey) return;
  if (currentTab() !== "label" || $("label-review").hidden) return;
  event.preventDefault();
  guarded(work)();
}

export function setUpReview() {
  editor = new BoxEditor($("label-boxes"), guarded((box) => save(photos[at], box)));
  $("label-accept").addEventListener("click", guarded(accept));
  $("label-reject").addEventListener("click", guarded(reject));
  $("label-next").addEventListener("click", () => move(1));
  $("label-previous").addEventListener("click", () => move(-1));
  document.addEventListener("keydown", takeKey);
}
