/* The tabs. The part of the address after # names the one that is shown. */

const TABS = ["try", "teach", "label", "model"];

export const currentTab = () => TABS.find((name) => `#${name}` === location.hash) ?? "try";

/** Resolves when the tab is shown. */
export async function openTab(name) {
  if (location.hash === `#${name}`) return;
  const shown = new Promise((resolve) => {
    window.addEventListener("hashchange", () => setTimeout(resolve), { once: true });
  });
  location.hash = name;
  await shown;
}
