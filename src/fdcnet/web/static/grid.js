/* Try: many photos at once, as a grid of answers. */

import { $, count, percent, rectangle, shape, style, tag } from "./dom.js";
import { announce, ask, Problem } from "./server.js";
import { onModelChange } from "./model.js";
import { photoUrl } from "./photo.js";

const AT_ONCE = 2; // the server answers two at a time
let photos = []; // {file, url, element, className, failed}
let open = null; // called with the file of a clicked photo
let round = 0;

export async function showGrid(files, openPhoto) {
  photos.forEach((photo) => URL.revokeObjectURL(photo.url));
  photos = files.map((file) => ({ file, url: null, element: tag("figure", { class: "waiting" }, tag("div", { class: "stage" })), className: null, failed: false }));
  open = openPhoto;
  $("grid").replaceChildren(...photos.map((photo) => photo.element));
  returnToGrid();
  await predictAll();
}

/** Whether there is a grid to return to. */
export function returnToGrid() {
  $("grid-part").hidden = !photos.length;
  return photos.length > 0;
}

export function hideGrid() {
  photos.forEach((photo) => URL.revokeObjectURL(photo.url));
  photos = [];
  round++;
  $("grid-part").hidden = $("back-to-grid").hidden = true;
}

async function predictAll() {
  const own = ++round;
  const todo = [...photos];
  const work = async () => {
    for (let photo = todo.shift(); photo && own === round; photo = todo.shift()) await predictOne(photo);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (own === round) announce($("grid-summary").textContent);
}

async function predictOne(photo) {
  try {
    photo.url ??= await photoUrl(photo.file);
    const prediction = await ask("api/predict?top_k=1", { method: "POST", body: photo.file });
    Object.assign(photo, { className: prediction.class, failed: false });
    photo.element.replaceChildren(...answer(photo, prediction));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    Object.assign(photo, { className: null, failed: true });
    photo.element.replaceChildren(tag("div", { class: "stage" }), tag("figcaption", { class: "wrong" }, error.message));
  }
  photo.element.classList.remove("waiting");
  summarize();
}

function answer(photo, { width, height, box, class: name, score, unfamiliar }) {
  const stage = tag("button", { type: "button", class: "stage", "aria-label": `Open ${photo.file.name}: ${name}`, onclick: () => {
    $("grid-part").hidden = true;
    $("back-to-grid").hidden = false;
    open(photo.file);
  } }, tag("img", { src: photo.url, alt: "" }),
  shape("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    box ? [rectangle(box, "shade"), rectangle(box, "found")] : []));
  return [style(stage, "--aspect", width / height),
    tag("figcaption", {}, tag("b", {}, name), ` ${percent(score)}`, tag("br"),
      unfamiliar ? tag("span", { class: "doubt" }, "may be none of the known classes") : tag("small", {}, photo.file.name))];
}

function summarize() {
  const counts = new Map();
  for (const { className } of photos) if (className !== null) counts.set(className, (counts.get(className) ?? 0) + 1);
  const parts = [...counts].sort((a, b) => b[1] - a[1]).map(([name, number]) => `${number} ${name}`);
  const numFailed = photos.filter((photo) => photo.failed).length;
  if (numFailed) parts.push(`${numFailed} failed`);
  $("grid-summary").textContent = `${count(photos.length, "photo")}: ${parts.join(", ")}`;
}

onModelChange(() => { if (photos.length) predictAll(); });
