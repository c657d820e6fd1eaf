"use strict";

/* Sort a table by the column whose name was pressed: ascending first, so that the worst classes come first. */
function sortBy(header) {
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  for (const other of header.parentElement.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const body = header.closest("table").tBodies[0];
  const text = (row) => row.cells[header.cellIndex].dataset.value ?? row.cells[header.cellIndex].textContent.trim();
  const isNumber = header.hasAttribute("data-number");
  const compare = (a, b) => (isNumber ? a - b : a.localeCompare(b)) * (ascending ? 1 : -1);
  const rows = Array.from(body.rows).map((row) => [text(row), row]);
  rows.sort(([a], [b]) => (a === "" || b === "" ? (a === "") - (b === "") : compare(a, b)));
  body.append(...rows.map(([, row]) => row));
}
for (const button of document.querySelectorAll(".sortable th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

/* Say where a table is wider than the page. */
const observer = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    target.previousElementSibling.hidden = target.clientWidth >= target.scrollWidth;
  }
});
for (const box of document.querySelectorAll(".scroll")) observer.observe(box);

/* Print folded parts, too. */
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details:not([open])")) {
    part.open = true;
    part.dataset.folded = "";
  }
});
addEventListener("afterprint", () => {
  for (const part of document.querySelectorAll("details[data-folded]")) {
    part.open = false;
    delete part.dataset.folded;
  }
});
