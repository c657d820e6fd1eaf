/* Requests to the server, and messages to the reader. */

import { $ } from "./dom.js";

export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}
export class Offline extends Problem {}

const text = (body, status) =>
  body?.problem ? `${body.problem} ${body.remedy}` : `The server answered with error ${status}.`;

async function request(path, options) {
  try {
    return await fetch(path, options);
  } catch {
    throw new Offline("The server does not answer. Check that “fdcnet serve” is still running.");
  }
}

export async function ask(path, options = {}) {
  const answer = await request(path, options);
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  throw new Problem(text(body, answer.status), answer.status);
}

/** The answer as a blob: a picture. */
export async function fetchPicture(path, options = {}) {
  const answer = await request(path, options);
  if (answer.ok) return answer.blob();
  throw new Problem(text(await answer.json().catch(() => null), answer.status), answer.status);
}

/** As `ask` for a form, with upload progress, which fetch does not report. */
export function send(path, form, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.responseType = "json";
    request.upload.onprogress = ({ loaded, total }) => onProgress(loaded / total);
    request.onload = () => {
      if (request.status < 300) resolve(request.response);
      else reject(new Problem(text(request.response, request.status), request.status));
    };
    request.onerror = () => reject(new Offline(
      "The upload failed: the server refused it or is not running. Check that “fdcnet serve” is still running."));
    request.open("POST", path);
    request.send(form);
  });
}

/** For screen readers. */
export function announce(message) {
  $("announcement").textContent = message;
}
export function showProblem(error) {
  $("problem").firstElementChild.textContent =
    error instanceof Problem ? error.message : `This page failed: ${error.message}`;
  $("problem").hidden = false;
}
export function hideProblem() {
  $("problem").hidden = true;
}
/** Run an event handler that may fail, and show what went wrong. */
export const guarded = (work) => (...values) => Promise.resolve().then(() => work(...values)).catch(showProblem);
