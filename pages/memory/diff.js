// A line diff of two texts, with the changed part of a changed line marked.

const MAX_EDITS = 2_000;

function trace(left, right) {
  const limit = Math.min(left.length + right.length, MAX_EDITS);
  const furthest = new Map([[1, 0]]);
  const history = [];
  for (let edits = 0; edits <= limit; edits += 1) {
    history.push(new Map(furthest));
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && (furthest.get(k - 1) ?? -1) < (furthest.get(k + 1) ?? -1));
      let x = down ? furthest.get(k + 1) ?? 0 : (furthest.get(k - 1) ?? 0) + 1;
      let y = x - k;
      while (x < left.length && y < right.length && left[x] === right[y]) { x += 1; y += 1; }
      furthest.set(k, x);
      if (x >= left.length && y >= right.length) return history;
    }
  }
  return null;
}

function replaced(left, right) {
  return [...left.map((text) => ({ kind: "del", text })), ...right.map((text) => ({ kind: "add", text }))];
}

function middle(left, right) {
  const history = trace(left, right);
  // Too different to be readable line by line: the old text, then the new one.
  if (!history) return replaced(left, right);
  const rows = [];
  let x = left.length;
  let y = right.length;
  for (let edits = history.length - 1; edits >= 0; edits -= 1) {
    const before = history[edits];
    const k = x - y;
    const down = k === -edits || (k !== edits && (before.get(k - 1) ?? -1) < (before.get(k + 1) ?? -1));
    const previousK = down ? k + 1 : k - 1;
    const previousX = before.get(previousK) ?? 0;
    const previousY = previousX - previousK;
    while (x > previousX && y > previousY && x > 0 && y > 0) { x -= 1; y -= 1; rows.push({ kind: "same", text: left[x] }); }
    if (edits === 0) break;
    if (down) { y -= 1; rows.push({ kind: "add", text: right[y] }); } else { x -= 1; rows.push({ kind: "del", text: left[x] }); }
  }
  return rows.reverse();
}

/** Rows {kind: same | del | add, text} that lead from one text to another. */
export function diffLines(oldText, newText) {
  const left = oldText === "" ? [] : oldText.split("\n");
  const right = newText === "" ? [] : newText.split("\n");
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start += 1;
  let end = 0;
  while (end < left.length - start && end < right.length - start
    && left[left.length - 1 - end] === right[right.length - 1 - end]) end += 1;
  const same = (text) => ({ kind: "same", text });
  return [
    ...left.slice(0, start).map(same),
    ...middle(left.slice(start, left.length - end), right.slice(start, right.length - end)),
    ...(end ? left.slice(-end) : []).map(same),
  ];
}

/** Gives each removed line the added one that most likely replaced it, and the reverse. */
export function paired(rows) {
  let at = 0;
  while (at < rows.length) {
    let middleAt = at;
    while (rows[middleAt]?.kind === "del") middleAt += 1;
    let end = middleAt;
    while (rows[end]?.kind === "add") end += 1;
    const count = Math.min(middleAt - at, end - middleAt);
    for (let offset = 0; offset < count; offset += 1) {
      rows[at + offset].pair = rows[middleAt + offset].text;
      rows[middleAt + offset].pair = rows[at + offset].text;
    }
    at = Math.max(end, at + 1);
  }
  return rows;
}

/** The three parts of a line against its counterpart: equal start, changed middle, equal end. */
export function changedPart(text, other) {
  const a = [...text];
  const b = [...other];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const parts = [a.slice(0, start), a.slice(start, a.length - end), a.slice(a.length - end)];
  return parts.map((part) => part.join(""));
}
