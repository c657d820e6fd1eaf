/* Files by class: one class per folder; loose photos belong to a class without a name. */

const isHidden = (name) => name.startsWith(".");

/** From a drop. */
export async function groupDropped(items) {
  const groups = new Map();
  const fileOf = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));
  const walk = async (entry, folder) => {
    if (entry.isFile) {
      if (!isHidden(entry.name)) add(groups, folder, await fileOf(entry));
      return;
    }
    const reader = entry.createReader();
    for (;;) { // a reader returns at most a hundred entries at a time
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!some.length) return;
      for (const inner of some) await walk(inner, entry.name);
    }
  };
  const entries = items.map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile()).filter(Boolean); // before the first await: items expire
  for (const entry of entries) {
    if (entry instanceof File) add(groups, "", entry); // a picture from another page
    else await walk(entry, "");
  }
  return byName(groups);
}

/** From a folder picker. */
export function groupChosen(files) {
  const groups = new Map();
  for (const file of files) {
    if (!isHidden(file.name)) add(groups, file.webkitRelativePath.split("/").at(-2) ?? "", file);
  }
  return byName(groups);
}

/** Browsers list folders in any order. */
const byName = (groups) => new Map([...groups].sort(([a], [b]) => a.localeCompare(b)));

function add(groups, name, file) {
  groups.set(name, [...(groups.get(name) ?? []), file]);
}
