/* Teach: a card per class, with its name and photos. */

import { $, classCount, count, megabytes, tag } from "./dom.js";
import { guarded, showProblem } from "./server.js";
import { isKnown, isNew, model, onModelChange, ready } from "./model.js";
import { isShowable, photoUrl, skippedMessage, unusable } from "./photo.js";
import { groupChosen } from "./folders.js";

export const cards = []; // {name, photos: [{file, url, broken}], element}

export function addCard(name = "", files = []) {
  const card = { name: name.normalize("NFC"), photos: [], element: null };
  cards.push(card);
  card.element = cardElement(card);
  $("cards").append(card.element);
  addPhotos(card, files);
  return card;
}

/** A new model needs two classes, so it starts with two cards. */
export function addFirstCards() {
  while (cards.length < (isNew() ? 2 : 1)) addCard();
  update();
}

export function addGroups(groups) {
  removeEmptyCards();
  for (const [name, files] of groups) {
    if (files.every(unusable)) showProblem(skippedMessage(files));
    else addCard(name, files);
  }
  addFirstCards();
}

export function addPastedPhotos(files) {
  addPhotos(cards.at(-1) ?? addCard(), files);
}

export function removeEmptyCards() {
  cards.filter((card) => !card.name && !card.photos.length).forEach(removeCard);
}

export function removeCard(card) {
  card.photos.forEach((photo) => URL.revokeObjectURL(photo.url));
  cards.splice(cards.indexOf(card), 1);
  card.element.remove();
}

/** What the server takes: class names, each followed by its photos. */
export function lessonForm() {
  const form = new FormData();
  for (const card of cards) {
    form.append("class", card.name);
    for (const photo of usable(card)) form.append("photo", photo.file);
  }
  return form;
}

const usable = (card) => card.photos.filter((photo) => !photo.broken);

function cardElement(card) {
  const input = tag("input", { type: "text", value: card.name, maxlength: 200, autocomplete: "off", spellcheck: "false",
    list: "known-classes", oninput: () => { card.name = input.value.trim(); update(); } });
  const choose = tag("input", { type: "file", accept: "image/*", multiple: true, hidden: true, "aria-label": "Photos of this class",
    onchange: () => { addPhotos(card, [...choose.files]); choose.value = ""; } });
  const remove = () => {
    removeCard(card);
    update();
    $("add-class").focus();
  };
  return tag("div", { class: "card", role: "group", "aria-label": "Class" },
    tag("div", { class: "row" }, tag("label", {}, "Class name", input),
      tag("button", { type: "button", class: "quiet", onclick: remove }, "Remove")),
    tag("p", { class: "state", "aria-live": "polite" }), tag("ul", { class: "thumbs" }), choose);
}

function addPhotos(card, files) {
  const others = files.filter(unusable);
  if (others.length) showProblem(skippedMessage(others));
  const added = files.filter((file) => !unusable(file)).map((file) => ({ file, url: URL.createObjectURL(file), broken: false }));
  card.photos.push(...added);
  drawPhotos(card);
  update();
  check(card, added);
}

/** Replace what the browser cannot show by the server's preview. What neither can read does not count. */
async function check(card, photos) {
  for (const photo of photos) {
    if (await isShowable(photo.file)) continue;
    try {
      photo.url = await photoUrl(photo.file);
    } catch {
      photo.broken = true;
    }
    drawPhotos(card);
    update();
  }
}

function drawPhotos(card) {
  const thumbs = card.photos.map((photo, number) =>
    tag("li", { class: photo.broken ? "broken" : null, title: photo.broken ? `${photo.file.name} cannot be read` : null },
      photo.broken ? tag("span", {}, photo.file.name) : tag("img", { src: photo.url, alt: "", loading: "lazy" }),
      tag("button", { type: "button", "aria-label": `Remove photo ${number + 1}`, onclick: () => {
        URL.revokeObjectURL(photo.url);
        card.photos.splice(card.photos.indexOf(photo), 1);
        drawPhotos(card);
        update();
        card.element.querySelector(".add").focus();
      } }, "×")));
  const add = tag("button", { type: "button", class: "add",
    onclick: () => card.element.querySelector("input[type=file]").click() },
  tag("span", { "aria-hidden": "true" }, "+"), "Add photos");
  card.element.querySelector(".thumbs").replaceChildren(...thumbs, tag("li", {}, add));
}

function cardState(card, names) {
  const number = usable(card).length;
  const broken = card.photos.length - number;
  const photos = count(number, "photo") + (broken ? ` (${broken} unreadable)` : "");
  const missing = model.limits.min_photos - number;
  if (!card.name && !card.photos.length) return ["Enter a name and add photos.", false];
  if (!card.name) return [`${photos}. Enter a name.`, false];
  if (names.indexOf(card.name) !== names.lastIndexOf(card.name)) return [`${photos}. Two classes have this name.`, false];
  if (isKnown(card.name)) return [`${photos}. The model knows this class; they will be added to it.`, number > 0];
  if (missing > 0) return [`${photos}. Add at least ${missing} more.`, false];
  return [photos, true];
}

/** Bring all texts and buttons in line with the cards. */
export function update() {
  const { limits } = model;
  const names = cards.map((card) => card.name);
  let complete = cards.length > 0;
  for (const card of cards) {
    const [text, isComplete] = cardState(card, names);
    card.element.querySelector(".state").textContent = text;
    complete &&= isComplete;
  }
  const photos = cards.flatMap(usable);
  const bytes = photos.reduce((sum, photo) => sum + photo.file.size, 0);
  let summary = cards.length ? `${classCount(cards.length)}, ${count(photos.length, "photo")}` : "";
  if (photos.length > limits.photos || bytes > limits.lesson_bytes || cards.length > limits.classes) {
    summary += `. Too many for one lesson: the limits are ${limits.classes} classes, ${limits.photos} photos and ${megabytes(limits.lesson_bytes)}.`;
    complete = false;
  } else if (complete && isNew() && cards.length < 2) {
    [summary, complete] = [`${summary}. A new model needs two classes.`, false];
  }
  $("lesson-summary").textContent = summary;
  $("start").disabled = !complete;
  $("example").hidden = model.version > 0 || cards.some((card) => card.name || card.photos.length);
}

export function setUpCards() {
  onModelChange(() => { if (cards.length) update(); });
  $("add-class").addEventListener("click", guarded(async () => {
    await ready;
    addCard().element.querySelector("input").focus();
  }));
  $("choose-folder").addEventListener("click", () => $("folder").click());
  $("folder").addEventListener("change", guarded(async () => {
    const groups = groupChosen([...$("folder").files]);
    $("folder").value = "";
    await ready;
    addGroups(groups);
  }));
}
