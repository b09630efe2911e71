// Unsaved values of every session, kept while the page is open.
//
// A draft remembers the row it started from; a later save compares with it, so
// that nobody else's change is overwritten.

import { get, post } from "./api.js";

const drafts = new Map();
const listeners = new Set();

export class Conflict extends Error {
  constructor(current, fields) {
    super("conflict");
    this.current = current;
    this.fields = fields;
  }
}

let known = "";

/** Calls back whenever the set of unsaved sessions has changed. */
export function onDrafts(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function changed() {
  const now = JSON.stringify([...drafts.keys()]);
  if (now === known) return;
  known = now;
  listeners.forEach((listener) => listener());
}

export function isDirty(sessionId) {
  return drafts.has(sessionId);
}

export function dirtyCount() {
  return drafts.size;
}

/** The base row of a draft, if the session has one. */
export function draftBase(sessionId) {
  return drafts.get(sessionId)?.base;
}

/** A field as the server has it: of the row itself, or one of its options. */
export function stored(row, name) {
  return name in row ? row[name] : row.options?.[name];
}

/** A field as the user sees it: the unsaved value, or that of the row. */
export function valueOf(row, name) {
  const values = drafts.get(row.session_id)?.values;
  return values && name in values ? values[name] : stored(row, name);
}

export function isFieldDirty(sessionId, name) {
  return name in (drafts.get(sessionId)?.values ?? {});
}

/** Notes an edit; an edit back to the stored value is no change. */
export function edit(row, name, value) {
  const draft = drafts.get(row.session_id) ?? { base: row, values: {} };
  if (value === stored(draft.base, name)) delete draft.values[name];
  else draft.values[name] = value;
  if (Object.keys(draft.values).length) drafts.set(row.session_id, draft);
  else drafts.delete(row.session_id);
  changed();
}

export function discard(sessionId, names) {
  const draft = drafts.get(sessionId);
  if (!draft) return;
  for (const name of names ?? Object.keys(draft.values)) delete draft.values[name];
  if (!Object.keys(draft.values).length) drafts.delete(sessionId);
  changed();
}

/** Takes a newer row as the base; what the user typed stays. */
export function rebase(row) {
  const draft = drafts.get(row.session_id);
  if (!draft) return;
  draft.base = row;
  for (const [name, value] of Object.entries(draft.values)) if (value === stored(row, name)) delete draft.values[name];
  if (!Object.keys(draft.values).length) drafts.delete(row.session_id);
  changed();
}

function conflicting(draft, names, current) {
  return names.filter((name) => stored(current, name) !== stored(draft.base, name) && stored(current, name) !== draft.values[name]);
}

/**
 * Saves some fields of a draft. When somebody else changed the session, fields that
 * nobody else touched are saved onto the newer row; the others are a Conflict.
 */
export async function save(sessionId, names) {
  const draft = drafts.get(sessionId);
  const own = names.filter((name) => draft && name in draft.values);
  if (!own.length) return { row: draft?.base, merged: false };
  try {
    return { row: await send(sessionId, draft, own), merged: false };
  } catch (error) {
    const current = await get("session", { session_id: sessionId });
    if (current.revision === draft.base.revision) throw error;
    const fields = conflicting(draft, own, current);
    if (fields.length) throw new Conflict(current, fields);
    rebase(current);
    const rest = own.filter((name) => isFieldDirty(sessionId, name));
    const row = rest.length ? await send(sessionId, drafts.get(sessionId), rest) : current;
    return { row, merged: true };
  }
}

async function send(sessionId, draft, names) {
  const changes = Object.fromEntries(names.map((name) => [name, draft.values[name]]));
  const row = await post("session", { session_id: sessionId, revision: draft.base.revision, changes });
  for (const name of names) if (draft.values[name] === changes[name]) delete draft.values[name];
  rebase(row);
  return row;
}
