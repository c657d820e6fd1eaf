/* Photos of any format as pictures that the browser can show. */

import { fetchPicture, Problem } from "./server.js";
import { megabytes } from "./dom.js";
import { model } from "./model.js";

/** Why a file is not sent to the server, or null. */
export function unusable(file) {
  if (/^(text|video|audio)\//.test(file.type)) return "not a photo";
  if (!file.size) return "empty";
  return file.size > model.limits.photo_bytes ? `larger than ${megabytes(model.limits.photo_bytes)}` : null;
}

export function skippedMessage(files) {
  const named = files.slice(0, 3).map((file) => `${file.name} (${unusable(file)})`).join(", ");
  return new Problem(`Skipped: ${named}${files.length > 3 ? ` and ${files.length - 3} more` : ""}.`);
}

/** Whether the browser itself can decode it. */
export async function isShowable(file) {
  try {
    (await createImageBitmap(file, { resizeWidth: 8 })).close();
    return true;
  } catch {
    return false;
  }
}

/** A URL of the photo: its own, or of the server's JPEG. Fails if neither can read it. */
export async function photoUrl(file) {
  if (await isShowable(file)) return URL.createObjectURL(file);
  try {
    return URL.createObjectURL(await fetchPicture("api/preview", { method: "POST", body: file }));
  } catch (error) {
    error.message = error.message.replace(/^photo (?=cannot be read)/, () => `${file.name} `);
    throw error;
  }
}

/** Save the photo with its heat map, box and class as a JPEG. Box and size are in pixels of the original. */
export async function downloadAnnotated({ image, heat, opacity, prediction, box, fileName }) {
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  pen.globalAlpha = opacity;
  pen.drawImage(heat, 0, 0, canvas.width, canvas.height);
  pen.globalAlpha = 1;
  const scale = [canvas.width / prediction.width, canvas.height / prediction.height];
  drawBox(pen, box.map((value, i) => value * scale[i % 2]), Math.max(canvas.width, canvas.height) / 250);
  drawLabel(pen, prediction, Math.max(12, Math.round(canvas.height / 28)));
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  const link = Object.assign(document.createElement("a"), {
    href: URL.createObjectURL(blob), download: `${fileName.replace(/\.[^.]*$/, "")}-annotated.jpg`,
  });
  link.click();
  URL.revokeObjectURL(link.href);
}

function drawBox(pen, [x0, y0, x1, y1], width) {
  for (const [color, line] of [["rgb(0 0 0 / 0.45)", 2 * width], ["#28e878", width]]) {
    Object.assign(pen, { strokeStyle: color, lineWidth: line });
    pen.strokeRect(x0, y0, x1 - x0, y1 - y0);
  }
}

function drawLabel(pen, prediction, size) {
  const score = prediction.top.find((entry) => entry.class === prediction.class)?.score ?? prediction.score;
  const text = `${prediction.class} ${Math.round(100 * score)} %`;
  pen.font = `600 ${size}px system-ui, sans-serif`;
  pen.fillStyle = "rgb(0 0 0 / 0.65)";
  pen.fillRect(0, 0, pen.measureText(text).width + size, 1.6 * size);
  pen.fillStyle = "#ffffff";
  pen.fillText(text, size / 2, 1.12 * size);
}
