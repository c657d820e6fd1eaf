"use strict";

/* ---- small tools ---- */

const $ = (id) => document.getElementById(id);
const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;
const megabytes = (bytes) => `${Number((bytes / 1e6).toFixed(1))} MB`;
const later = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
const tag = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const shape = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

function inWords(seconds) {
  if (seconds < 5) return "a few seconds";
  return seconds < 100 ? `${Math.round(seconds)} seconds` : `${Math.round(seconds / 60)} minutes`;
}

/* ---- talking to the server, and to the reader ---- */

class Problem extends Error {}
class Gone extends Problem {}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Gone("The server does not answer. See whether “fdcnet serve” is still running.");
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  throw new Problem(body?.problem ? `${body.problem} ${body.remedy}` : `The server answered with error ${answer.status}.`);
}

function say(text) {
  $("said").textContent = text;
}
function complain(error) {
  $("problem").firstElementChild.textContent = error instanceof Problem ? error.message : `This page failed: ${error.message}`;
  $("problem").hidden = false;
}
function allWell() {
  $("problem").hidden = true;
}
/** Run something that may fail; whatever goes wrong is said. */
const guarded = (work) => (...words) => Promise.resolve().then(() => work(...words)).catch(complain);

/* ---- the model ---- */

let model = null;
let ready = null; // a promise: somebody may choose a photo before the model is known

async function readModel() {
  const before = model;
  model = await ask("api/model");
  const classes = model.tasks.flatMap((task) => task.classes);
  document.title = `${model.name} · fdcnet`;
  $("model-name").textContent = model.name;
  $("model-facts").textContent = classes.length
    ? `Knows ${count(classes.length, "class", "classes")}, learned in ${count(model.tasks.length, "task")}`
    : "Knows nothing yet: teach it two classes to begin with";
  $("fewest").textContent = model.limits.fewest;
  if (before?.version === model.version && before.tasks.length === model.tasks.length) return;
  setUpPast();
  lookAnew();
  if (lesson?.state === "done") showInUse();
}
const knows = (name) => model?.tasks.some((task) => task.classes.includes(name));

/* ---- look ---- */

const looking = { file: null, answers: new Map(), answer: null, chosen: null, after: null, turn: 0 };

async function lookAt(file) {
  await ready;
  if (file.size > model.limits.photo_bytes) {
    throw new Problem(`That photo has ${megabytes(file.size)}; up to ${megabytes(model.limits.photo_bytes)} are taken.`);
  }
  if (!file.size) throw new Problem(`${file.name} is empty.`);
  allWell();
  if (location.hash !== "#look") location.hash = "#look";
  URL.revokeObjectURL($("photo").src);
  Object.assign(looking, { file, answers: new Map(), answer: null, chosen: null });
  clearOverlay();
  $("photo").src = URL.createObjectURL(file);
  $("look-drop").hidden = true;
  $("seen").hidden = false;
  await answer();
}

/** Another version is in use: what the old one said of the photo is of no use any more. */
function lookAnew() {
  if ($("seen").hidden) return;
  Object.assign(looking, { answers: new Map(), answer: null, chosen: null });
  clearOverlay();
  guarded(answer)();
}

/** Ask about the photo, as the sliders and the chosen class want it, and show it unless something newer was asked. */
async function answer() {
  const { file, chosen, after } = looking;
  const turn = ++looking.turn;
  const key = `${model.version} ${after} ${chosen}`;
  $("stage").classList.add("waiting");
  try {
    if (!looking.answers.has(key)) {
      const query = new URLSearchParams({ heat: true });
      if (chosen !== null) query.set("class", chosen);
      if (after !== null) query.set("after", after);
      if (!(await isShown($("photo")))) query.set("preview", true);
      const found = await ask(`api/look?${query}`, { method: "POST", body: file });
      found.fine = resized(found.heat, found.side);
      looking.answers.set(key, found);
    }
    if (turn === looking.turn) show(looking.answers.get(key));
  } catch (error) {
    if (turn !== looking.turn) return;
    if (looking.answer === null) {
      $("seen").hidden = true;
      $("look-drop").hidden = false;
    }
    error.message = error.message.replace(/^photo (?=cannot be read)/, () => `${file.name} `);
    throw error;
  } finally {
    if (turn === looking.turn) $("stage").classList.remove("waiting");
  }
}

/** Whether the browser can show it; if so, in its own proportions before the answer comes. */
async function isShown(image) {
  const shown = await image.decode().then(() => true, () => false);
  if (shown) $("stage").style.setProperty("--aspect", image.naturalWidth / image.naturalHeight);
  return shown;
}

function show(found) {
  looking.answer = found;
  if (found.preview) $("photo").src = found.preview;
  const best = found.top[0];
  $("answer-when").textContent = found.how === "now" ? "The model sees" : `After task ${looking.after} it would have said`;
  $("answer-class").textContent = best.class;
  $("answer-facts").textContent = `Score ${percent(best.score)} · learned in task ${best.task}`;
  $("answer-note").textContent = `It always names one of the ${count(found.num_classes, "class", "classes")} it `
    + `${found.how === "now" ? "knows" : "knew"}; its score is no probability.`;
  const guesses = found.top.map((guess) =>
    tag("label", { class: "guess" },
      tag("input", { type: "radio", name: "guess", value: guess.class, checked: guess.class === found.class,
        onchange: guarded(() => { looking.chosen = guess.class; return answer(); }) }),
      tag("span", {}, guess.class, " ", tag("small", {}, `task ${guess.task}`)),
      tag("span", { class: "score" }, percent(guess.score)),
      bar(guess.score)));
  const focused = document.activeElement?.name === "guess";
  $("top").lastElementChild.replaceChildren(...guesses);
  if (focused) $("top").querySelector(":checked")?.focus();
  $("after-note").textContent = pastNote(found);
  $("stage").style.setProperty("--aspect", found.width / found.height);
  $("photo").alt = `Your photo: ${found.class} is boxed`;
  paint(found.fine, found.side);
  drawBox();
  if (!$("part-look").hidden) say(`${best.class}, ${percent(best.score)}`);
}

function bar(share) {
  const element = tag("i", { "aria-hidden": "true" });
  element.style.setProperty("--score", share); // a style attribute would need a weaker policy
  return element;
}

function pastNote(found) {
  const known = `${count(found.num_classes, "class", "classes")} known`;
  if (found.how === "now") return `Today’s model: ${known}.`;
  if (found.how === "kept") return `That version of the model, as it was kept: ${known}.`;
  return `That version is not kept. This is today’s model, which may only name what was known then: ${known}.`;
}

function setUpPast() {
  const last = model.tasks.length;
  $("past").hidden = last < 2;
  $("no-past").hidden = last !== 1;
  $("after").max = last;
  $("after").value = last;
  looking.after = null;
  $("after-value").textContent = `${last} of ${last}`;
}

const RAMP = [[20, 12, 60], [88, 22, 122], [166, 38, 108], [224, 82, 60], [250, 156, 30], [253, 236, 140]];

/** A map as the server enlarges it: bilinear, pixel centres at halves. */
function resized(rows, side) {
  const at = (length) => Array.from({ length: side }, (_, i) => {
    const place = Math.max(0, ((i + 0.5) * length) / side - 0.5);
    const low = Math.floor(place);
    return [low, Math.min(low + 1, length - 1), place - low];
  });
  const across = at(rows[0].length);
  const fine = new Float32Array(side * side);
  at(rows.length).forEach(([top, bottom, down], y) => {
    across.forEach(([left, right, along], x) => {
      const upper = rows[top][left] * (1 - along) + rows[top][right] * along;
      const lower = rows[bottom][left] * (1 - along) + rows[bottom][right] * along;
      fine[y * side + x] = upper * (1 - down) + lower * down;
    });
  });
  return fine;
}

/** The stronger the hotter, so that the photo stays visible where the map is cold. */
function paint(fine, side) {
  const canvas = $("heat");
  canvas.width = canvas.height = side;
  const pixels = new ImageData(side, side);
  fine.forEach((heat, i) => {
    const place = Math.min(heat * (RAMP.length - 1), RAMP.length - 1.001);
    const low = Math.floor(place);
    for (let c = 0; c < 3; c++) pixels.data[4 * i + c] = RAMP[low][c] + (RAMP[low + 1][c] - RAMP[low][c]) * (place - low);
    pixels.data[4 * i + 3] = 255 * heat;
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

/** Box (x0, y0, x1, y1) of the largest region above the threshold, corners touching; of an empty map the whole square. */
function largestRegion(fine, side, threshold) {
  const open = Uint8Array.from(fine, (heat) => heat > threshold);
  let best = [0, 0, side, side], most = 0;
  for (let first = 0; first < open.length; first++) {
    if (!open[first]) continue;
    const box = [side, side, 0, 0], todo = [first];
    let area = 0;
    open[first] = 0;
    while (todo.length) {
      const place = todo.pop(), x = place % side, y = (place - x) / side;
      area++;
      box[0] = Math.min(box[0], x); box[1] = Math.min(box[1], y);
      box[2] = Math.max(box[2], x + 1); box[3] = Math.max(box[3], y + 1);
      for (let v = Math.max(0, y - 1); v <= Math.min(side - 1, y + 1); v++) {
        for (let u = Math.max(0, x - 1); u <= Math.min(side - 1, x + 1); u++) {
          if (open[v * side + u]) { open[v * side + u] = 0; todo.push(v * side + u); }
        }
      }
    }
    if (area > most) [best, most] = [box, area];
  }
  return best;
}

function drawBox() {
  const found = looking.answer;
  if (!found) return;
  const threshold = $("threshold").value / 100;
  const scale = [found.width / found.side, found.height / found.side];
  const box = Math.abs(threshold - found.threshold) < 0.005
    ? found.box
    : largestRegion(found.fine, found.side, threshold).map((value, i) => value * scale[i % 2]);
  $("boxes").setAttribute("viewBox", `0 0 ${found.width} ${found.height}`);
  $("boxes").setAttribute("preserveAspectRatio", "none");
  $("boxes").replaceChildren(rectangle(box, "shade"), rectangle(box, "found"));
}
const rectangle = ([x0, y0, x1, y1], kind) => shape("rect", { x: x0, y: y0, width: x1 - x0, height: y1 - y0, class: kind });

function clearOverlay() {
  $("boxes").replaceChildren();
  $("heat").width = 0;
}

function slid() {
  $("opacity-value").textContent = `${$("opacity").value} %`;
  $("threshold-value").textContent = `${$("threshold").value} %`;
  $("heat").style.opacity = $("opacity").value / 100;
  drawBox();
}

function travelled() {
  const task = Number($("after").value), last = model.tasks.length;
  $("after-value").textContent = `${task} of ${last}`;
  looking.after = task < last ? task : null;
  looking.chosen = null;
  return answer();
}

/* ---- teach: the photos ---- */

const cards = []; // {name, files: [{file, link}], element}

function addCard(name, files) {
  const card = { name: name.normalize("NFC"), files: [], element: null };
  cards.push(card);
  card.element = cardElement(card);
  $("cards").append(card.element);
  addPhotos(card, files);
  return card;
}

function cardElement(card) {
  const input = tag("input", { type: "text", value: card.name, maxlength: 200, autocomplete: "off", spellcheck: "false",
    oninput: () => { card.name = input.value.trim(); renew(); } });
  const choose = tag("input", { type: "file", accept: "image/*", multiple: true, hidden: true, "aria-label": "Photos of this class",
    onchange: () => { addPhotos(card, [...choose.files]); choose.value = ""; } });
  const remove = () => {
    card.files.forEach((photo) => URL.revokeObjectURL(photo.link));
    cards.splice(cards.indexOf(card), 1);
    card.element.remove();
    renew();
    $("add-class").focus();
  };
  return tag("div", { class: "card", role: "group", "aria-label": "A class" },
    tag("div", { class: "row" }, tag("label", {}, "Name of the class", input),
      tag("button", { type: "button", class: "quiet", onclick: remove }, "Remove")),
    tag("p", { class: "state", "aria-live": "polite" }), tag("ul", { class: "thumbs" }), choose);
}

function addPhotos(card, files) {
  const usable = files.filter((file) => !unfit(file));
  const others = files.filter(unfit);
  if (others.length) {
    const named = others.slice(0, 3).map((file) => `${file.name} (${unfit(file)})`).join(", ");
    complain(new Problem(`Left out: ${named}${others.length > 3 ? ` and ${others.length - 3} more` : ""}.`));
  }
  card.files.push(...usable.map((file) => ({ file, link: URL.createObjectURL(file) })));
  drawPhotos(card);
  renew();
}

/** Why a file is not even sent, if it is not. */
function unfit(file) {
  if (/^(text|video|audio)\//.test(file.type)) return "no photo";
  if (!file.size) return "empty";
  return file.size > model.limits.photo_bytes ? `larger than ${megabytes(model.limits.photo_bytes)}` : null;
}

/** The browser cannot show it; the server may still be able to read it. */
function markBlank({ target }, { name }) {
  target.alt = name;
  target.parentElement.title = `${name} cannot be shown here`;
  target.parentElement.classList.add("blank");
}

function drawPhotos(card) {
  const thumbs = card.files.map((photo, number) =>
    tag("li", {}, tag("img", { src: photo.link, alt: "", loading: "lazy", onerror: (event) => markBlank(event, photo.file) }),
      tag("button", { type: "button", "aria-label": `Remove photo ${number + 1}`, onclick: () => {
        URL.revokeObjectURL(photo.link);
        card.files.splice(card.files.indexOf(photo), 1);
        drawPhotos(card);
        renew();
        card.element.querySelector(".add").focus();
      } }, "×")));
  const add = tag("button", { type: "button", class: "add", "aria-label": "Add photos", title: "Add photos",
    onclick: () => card.element.querySelector("input[type=file]").click() }, "+");
  card.element.querySelector(".thumbs").replaceChildren(...thumbs, tag("li", {}, add));
}

/** Bring words and buttons in line with what is there. */
function renew() {
  const { limits } = model;
  const names = cards.map((card) => card.name);
  let ready = cards.length > 0;
  for (const card of cards) {
    const missing = limits.fewest - card.files.length;
    let state = count(card.files.length, "photo");
    let fine = true;
    if (!card.name && !card.files.length) [state, fine] = ["Add a name, and photos.", false];
    else if (!card.name) [state, fine] = [`${state}. It needs a name.`, false];
    else if (names.indexOf(card.name) !== names.lastIndexOf(card.name)) [state, fine] = [`${state}. Two classes have this name.`, false];
    else if (knows(card.name)) [state, fine] = [`${state}. The model knows this class: these will be added to it.`, card.files.length > 0];
    else if (missing > 0) [state, fine] = [`${state}: ${missing} more at least.`, false];
    card.element.querySelector(".state").textContent = state;
    ready &&= fine;
  }
  const photos = cards.flatMap((card) => card.files);
  const bytes = photos.reduce((sum, photo) => sum + photo.file.size, 0);
  let note = cards.length ? `${count(cards.length, "class", "classes")}, ${count(photos.length, "photo")}` : "";
  if (photos.length > limits.photos || bytes > limits.lesson_bytes || cards.length > limits.classes) {
    [note, ready] = [`${note}: too much at a time. ${limits.photos} photos and ${megabytes(limits.lesson_bytes)} are taken.`, false];
  } else if (ready && model.version === 0 && cards.length < 2) {
    [note, ready] = [`${note}. To begin with it needs two classes.`, false];
  }
  $("lesson-sum").textContent = note;
  $("start").disabled = !ready;
}

/** Dropped files by class: each folder is one; loose photos are one without a name. */
async function dropped(items) {
  const groups = new Map();
  const add = (name, file) => groups.set(name, [...(groups.get(name) ?? []), file]);
  const fileOf = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));
  const walk = async (entry, folder) => {
    if (entry.isFile) {
      if (!entry.name.startsWith(".")) add(folder, await fileOf(entry));
      return;
    }
    const reader = entry.createReader();
    for (;;) { // a reader gives a hundred at a time
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!some.length) return;
      for (const inner of some) await walk(inner, entry.name);
    }
  };
  const entries = items.map((item) => item.webkitGetAsEntry?.()).filter(Boolean); // before the first await: items expire
  for (const entry of entries) await walk(entry, "");
  return groups;
}

/* ---- teach: the lesson ---- */

async function startLesson(event) {
  event.preventDefault();
  allWell();
  const form = new FormData();
  for (const card of cards) {
    form.append("class", card.name);
    for (const photo of card.files) form.append("photo", photo.file);
  }
  $("start").disabled = true;
  try {
    const started = await send(`api/lesson?more=${cards.some((card) => knows(card.name))}`, form);
    notesOpened = $("lesson-notes").open = false;
    showLesson(started);
    $("lesson-title").focus();
    follow();
  } finally {
    renew();
  }
}

/** As `ask`, and tells how far the upload is, which fetch cannot. */
function send(path, form) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.responseType = "json";
    request.upload.onprogress = ({ loaded, total }) => {
      $("lesson-sum").textContent = loaded < total ? `Sending: ${percent(loaded / total)}` : "Opening the photos …";
    };
    request.onload = () => {
      const body = request.response;
      if (request.status < 300) resolve(body);
      else reject(new Problem(body?.problem ? `${body.problem} ${body.remedy}` : `The server answered with error ${request.status}.`));
    };
    request.onerror = () => reject(new Gone("The photos did not get through: the server is gone, or refused them. See whether “fdcnet serve” is still running."));
    request.open("POST", path);
    request.send(form);
  });
}

let lesson = null; // as it was shown last
let notesOpened = false;
let following = false;

async function follow() {
  if (following) return;
  following = true;
  try {
    for (;;) {
      let now;
      try {
        now = await ask("api/lesson");
      } catch (error) {
        if (!(error instanceof Gone)) throw error;
        complain(error);
        await later(2000);
        continue;
      }
      if (!$("problem").hidden && $("problem").textContent.includes("does not answer")) allWell();
      if (now.state === "none") { // the server was started anew
        complain(new Problem("The server was started again: the lesson is lost, the model is as it was."));
        backToCards();
        return;
      }
      if (now.state === "done") await readModel();
      showLesson(now);
      if (now.state !== "learning") {
        say($("lesson-title").textContent);
        $("lesson-title").focus();
        return;
      }
      await later(700);
    }
  } catch (error) {
    complain(error);
  } finally {
    following = false;
  }
}

function taught() {
  const names = lesson.classes.map((entry) => entry.name);
  return names.length > 3 ? count(names.length, "class", "classes") : names.join(", ");
}

function showLesson(now) {
  lesson = now;
  const going = lesson.state === "learning";
  $("lesson-form").hidden = true;
  $("lesson").hidden = false;
  $("lesson-title").textContent = {
    learning: `Learning ${taught()}`, failed: "It did not learn", cancelled: "Cancelled",
  }[lesson.state] ?? "";
  $("lesson-line").textContent = going ? goingLine(lesson) : {
    cancelled: "The model is as it was.", failed: `${lesson.problem ?? ""} ${lesson.remedy ?? ""}`,
  }[lesson.state] ?? "";
  $("lesson-line").classList.toggle("wrong", lesson.state === "failed");
  $("lesson-progress").hidden = $("cancel").hidden = !going;
  $("cancel").disabled = lesson.cancelling;
  if (lesson.share > 0) $("lesson-progress").value = lesson.share;
  else $("lesson-progress").removeAttribute("value");
  showLosses(lesson.epochs);
  const notes = [...lesson.left_out.map((photo) => `Left out: ${photo.name}: ${photo.reason}`), ...lesson.notes];
  $("lesson-notes").hidden = !notes.length;
  $("lesson-notes").lastElementChild.replaceChildren(...notes.map((note) => tag("li", {}, note)));
  if (!notesOpened && notes.some((note) => note.startsWith("Left out"))) notesOpened = $("lesson-notes").open = true;
  $("outcome").replaceChildren(...(going ? [meanwhile(lesson)] : outcome(lesson)));
  if (lesson.state === "done") showInUse();
  $("lesson-curves").open = going;
}

/** Of a lesson that is done: whether what it made is still in use, and only then the way back. */
function showInUse() {
  const { report, seconds } = lesson;
  const used = model.version === report.version;
  $("lesson-title").textContent = used ? `It has learned ${taught()}` : `Version ${report.version} learned ${taught()}`;
  if (used) $("lesson-line").textContent = `In ${inWords(seconds)}. The new version is in use.`;
  else $("lesson-line").textContent = `${model.version < report.version ? "Taken back: v" : "V"}ersion ${model.version} is in use.`;
  if ($("roll-back")) $("roll-back").hidden = !used;
}

function goingLine(lesson) {
  if (lesson.cancelling) return "Stopping …";
  const doing = lesson.doing[0].toUpperCase() + lesson.doing.slice(1);
  return lesson.seconds_left === null ? `${doing} …` : `${doing}: ${percent(lesson.share)}, about ${inWords(lesson.seconds_left)} left`;
}

function meanwhile(lesson) {
  const left = lesson.left_out.length ? ` ${count(lesson.left_out.length, "photo")} could not be used: see below.` : "";
  return tag("p", { class: "note" }, `You can look at photos meanwhile: the old version answers until the new one is complete.${left}`);
}

const LOSSES = {
  cls: "naming the photo", cls_fg: "naming by the mask", bas: "nothing left outside the mask", area: "small mask",
  kd_cls: "old names kept", kd_loc: "old masks kept", kd_feat_cls: "old features kept", kd_feat_loc: "old features kept",
};

function showLosses(epochs) {
  const lines = new Map(); // by phase and name
  for (const { phase, epoch, epochs: last, losses } of epochs) {
    for (const [name, value] of Object.entries(losses)) {
      const key = `${phase} ${name}`;
      if (!lines.has(key)) lines.set(key, { name, last, points: [] });
      lines.get(key).points.push([epoch, value]);
    }
  }
  $("lesson-curves").hidden = !lines.size;
  $("lesson-curves").lastElementChild.replaceChildren(...[...lines.values()].map(({ name, last, points }) =>
    tag("figure", {}, tag("figcaption", {}, LOSSES[name] ?? name, tag("small", {}, LOSSES[name] ? name : "")),
      chart([points], { label: `${LOSSES[name] ?? name}: ${points.at(-1)[1].toPrecision(3)} now`, width: 240, height: 110, last }))));
}

function outcome(lesson) {
  const again = tag("button", { type: "button", class: "primary", onclick: () => { backToCards(); $("cards").querySelector("input").focus(); } },
    lesson.state === "done" ? "Teach it more" : "Back to the photos");
  if (lesson.state !== "done") return [tag("p", { class: "buttons" }, again)];
  const { report } = lesson;
  const back = tag("button", { type: "button", id: "roll-back", onclick: guarded(async () => {
    back.disabled = true;
    try {
      await ask(`api/rollback?of=${report.version}`, { method: "POST" });
    } finally {
      back.disabled = false;
      back.focus();
      await readModel(); // also where it was refused: another version is in use
      if (back.hidden) $("lesson-title").focus();
    }
    say($("lesson-line").textContent);
  }) }, "Roll back");
  cards.splice(0).forEach((card) => { card.files.forEach((photo) => URL.revokeObjectURL(photo.link)); card.element.remove(); });
  return [
    accuracies(report), ...pictures(lesson.photos),
    tag("p", { class: "buttons end" }, again, report.can_go_back ? back : null),
  ];
}

function accuracies(report) {
  const rows = [["Old classes, before", report.old_before], ["Old classes, now", report.old_after], ["New classes", report.new_after]];
  const shown = rows.filter(([, accuracy]) => accuracy);
  if (!shown.length) return tag("p", { class: "note" }, "Too few photos to hold some back, so nothing was measured: with ten of a class, two would measure.");
  const parts = [["class", "top1_cls"], ["box", "gt_known"], ["both", "top1_loc"]];
  const known = parts.filter(([, key]) => shown.some(([, accuracy]) => accuracy[key] !== null)); // boxes: if the true ones are known
  return table("Percent right, of photos that it never learned from", ["", ...known.map(([name]) => name), "photos"],
    shown.map(([name, accuracy]) => [name, ...known.map(([, key]) => number(accuracy[key])), accuracy.num_photos]));
}
const number = (value) => (value === null || value === undefined ? "–" : value.toFixed(0));

function pictures(photos) {
  const groups = [["new", "New photos"], ["learned", "Photos that it learned from"], ["old", "Old classes"]];
  const shown = groups.filter(([kind]) => photos.some((photo) => photo.kind === kind));
  if (!shown.length) return [];
  const key = tag("ul", { class: "key" }, tag("li", {}, tag("i"), "now"), tag("li", {}, tag("i", { class: "was" }), "before"));
  return shown.flatMap(([kind, title], i) => [
    tag("h3", {}, title), i ? null : key,
    tag("div", { class: "pairs" }, photos.map((photo, at) => (photo.kind === kind ? picture(photo, at) : null))),
  ]).filter(Boolean);
}

function picture(photo, at) {
  const stage = tag("div", { class: "stage" }, tag("img", { src: `api/lesson/photos/${at}?${Date.now()}`, alt: photo.class }));
  stage.style.setProperty("--aspect", photo.width / photo.height);
  const boxes = [[photo.before, "was"], [photo.after, "found"]].filter(([answer]) => answer?.box);
  const word = (when, answer) => answer && tag("span", {}, `${when} `,
    tag("b", { class: answer.class === photo.class ? "right" : "wrong" }, answer.class), ` ${percent(answer.score)}`, tag("br"));
  stage.append(shape("svg", { viewBox: `0 0 ${photo.width} ${photo.height}`, "aria-hidden": "true" },
    boxes.flatMap(([answer, kind]) => [rectangle(answer.box, "shade"), rectangle(answer.box, kind)])));
  return tag("figure", {}, stage, tag("figcaption", {}, word("now", photo.after), word("before", photo.before)));
}

function backToCards() {
  $("lesson").hidden = true;
  $("lesson-form").hidden = false;
  if (!cards.length) addCard("", []);
  renew();
}

/* ---- report ---- */

async function showReport() {
  const versions = model.version ? await ask("api/history") : [];
  const rows = versions.map((version) => [
    `${version.version}${version.current ? " · in use" : ""}`,
    new Date(version.created).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }),
    [...version.added, ...version.more.map((name) => `more of ${name}`)].join(", "),
    version.num_classes,
    version.old_after ? `${number(version.old_before?.top1_cls)} → ${number(version.old_after.top1_cls)}` : "–",
    number(version.new_after?.top1_cls),
    megabytes(version.bytes),
    version.current ? "" : tag("button", { type: "button", onclick: guarded(async () => {
      await ask(`api/rollback?to=${version.version}`, { method: "POST" });
      await readModel();
      await showReport();
      say(`Version ${version.version} is in use.`);
    }) }, "Use this one"),
  ]);
  const heads = ["version", "when.date", "added.words", "classes", "old classes", "new ones", "size", ""];
  $("history").replaceChildren(...(rows.length
    ? [table("Class right, percent of held-out photos: old classes before and after, and those that were added", heads, rows), ...accuracyChart(versions)]
    : [tag("p", { class: "note" }, "Nothing so far.")]));
  $("classes").replaceChildren(...model.tasks.flatMap((task) => [
    tag("h3", {}, `Task ${task.task} `, tag("small", {}, `${count(task.classes.length, "class", "classes")}${task.kept ? "" : " · the version after it is not kept"}`)),
    tag("ul", { class: "chips" }, task.classes.map((name) => tag("li", {}, name))),
  ]));
  $("run-link").hidden = !model.report;
}

/** How the line of versions that leads to the current one did. */
function accuracyChart(versions) {
  const line = [];
  for (let at = versions.find((v) => v.current); at; at = versions.find((v) => v.version === at.parent)) line.unshift(at);
  const points = (key) => line.filter((v) => v[key]).map((v) => [v.num_tasks, v[key].top1_cls]);
  const [old, fresh] = [points("old_after"), points("new_after")];
  if (old.length + fresh.length < 3) return [];
  const key = tag("ul", { class: "key" }, tag("li", {}, tag("i", { class: "line" }), "old classes"), tag("li", {}, tag("i", { class: "line second" }), "new classes"));
  return [tag("figure", {}, tag("figcaption", { class: "note" }, "Class right after each task, percent"), key,
    chart([old, fresh], { label: "Class right after each task", width: 440, height: 200, top: 100, dots: true }))];
}

/** A column "added.words" has the class words. */
function table(caption, columns, rows) {
  const heads = columns.map((column) => column.split("."));
  const cell = (value, i) => (i ? tag("td", { class: heads[i][1] ?? null, "data-head": heads[i][0] }, value) : tag("th", { scope: "row" }, value));
  const head = ([name, kind]) => tag("th", { scope: "col", class: kind ?? null }, name);
  return tag("div", {}, tag("p", { class: "caption" }, caption), tag("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    tag("table", { class: heads.length > 5 ? "stack" : null }, tag("thead", {}, tag("tr", {}, heads.map(head))),
      tag("tbody", {}, rows.map((row) => tag("tr", {}, row.map(cell)))))));
}

function chart(series, { label, width, height, top = null, last = null, dots = false }) {
  const all = series.flat();
  const high = top ?? Math.max(...all.map(([, y]) => y), 1e-9);
  const low = Math.min(0, ...all.map(([, y]) => y));
  const [from, to] = [Math.min(...all.map(([x]) => x)), last ?? Math.max(...all.map(([x]) => x))];
  const left = 34, bottom = height - 18;
  const px = (x) => (to > from ? left + ((x - from) / (to - from)) * (width - left - 6) : left + 4).toFixed(1);
  const py = (y) => (bottom - ((y - low) / (high - low)) * (bottom - 8)).toFixed(1);
  const word = (x, y, text, anchor) => shape("text", { x, y, "text-anchor": anchor }, text);
  const short = (value) => (value >= 10 ? value.toFixed(0) : value.toPrecision(2));
  return shape("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    shape("line", { x1: left, x2: width - 6, y1: py(low), y2: py(low), class: "grid" }),
    shape("line", { x1: left, x2: width - 6, y1: py(high), y2: py(high), class: "grid" }),
    word(left - 6, Number(py(high)) + 4, short(high), "end"), word(left - 6, Number(py(low)) + 4, low ? short(low) : "0", "end"),
    word(px(from), height - 4, from, "middle"), to > from ? word(px(to), height - 4, to, "end") : null,
    series.map((points, i) => [
      shape("polyline", { points: points.map(([x, y]) => `${px(x)},${py(y)}`).join(" "), class: i ? "line second" : "line" }),
      dots || points.length === 1 ? points.map(([x, y]) => shape("circle", { cx: px(x), cy: py(y), r: 3.5, class: i ? "second" : null })) : [],
    ]).flat(2));
}

/* ---- the page as a whole ---- */

function turnTo() {
  const wanted = ["look", "teach", "report"].find((name) => `#${name}` === location.hash) ?? "look";
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.hash === `#${wanted}`;
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    $(`part-${link.hash.slice(1)}`).hidden = !here;
  }
  allWell();
  if (wanted === "teach" && !cards.length && $("lesson").hidden) backToCards();
  if (wanted === "report") {
    $("history").replaceChildren(); // what it showed last time may no longer be so
    return readModel().then(showReport);
  }
}

async function takeDrop(transfer) {
  if (location.hash !== "#teach") {
    if (transfer.files.length) await lookAt(transfer.files[0]);
    return;
  }
  if ($("lesson-form").hidden) return;
  const groups = await dropped([...transfer.items]);
  cards.filter((card) => !card.name && !card.files.length).forEach((card) => { cards.splice(cards.indexOf(card), 1); card.element.remove(); });
  for (const [name, files] of groups) addCard(name, files);
  renew();
}

function listen() {
  const choose = (button, input) => {
    $(button).addEventListener("click", () => $(input).click());
  };
  choose("look-choose", "look-file");
  choose("look-again", "look-file");
  choose("look-take", "look-camera");
  choose("take-again", "look-camera");
  for (const input of [$("look-file"), $("look-camera")]) {
    input.addEventListener("change", guarded(async () => {
      const [file] = input.files;
      if (file) await lookAt(file).finally(() => { input.value = ""; });
    }));
  }
  document.addEventListener("paste", guarded(async (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (file && location.hash !== "#teach") await lookAt(file);
    else if (file && !$("lesson-form").hidden) addPhotos(cards.at(-1) ?? addCard("", []), [...event.clipboardData.files]);
  }));
  document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dragging"); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
  document.addEventListener("drop", guarded(async (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    await takeDrop(event.dataTransfer);
  }));
  $("opacity").addEventListener("input", slid);
  $("threshold").addEventListener("input", slid);
  $("after").addEventListener("input", guarded(travelled));
  $("add-class").addEventListener("click", () => addCard("", []).element.querySelector("input").focus());
  $("lesson-form").addEventListener("submit", guarded(startLesson));
  $("cancel").addEventListener("click", guarded(async () => showLesson(await ask("api/lesson", { method: "DELETE" }))));
  $("problem").lastElementChild.addEventListener("click", allWell);
  window.addEventListener("hashchange", guarded(turnTo));
}

guarded(async () => {
  ready = readModel();
  listen();
  await ready;
  $("threshold").value = Math.round(100 * model.threshold);
  slid();
  await turnTo();
  if (model.version === 0 && !location.hash) location.hash = "#teach";
  const now = await ask("api/lesson");
  if (now.state === "learning" || (now.state === "done" && now.report.version === model.version)) showLesson(now);
  if (now.state === "learning") follow();
})();
