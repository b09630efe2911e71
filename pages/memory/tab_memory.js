// Fixed memory and AI summary: two editors, one save, and what to do on a conflict.

import { button, fill, h, newId } from "./dom.js";
import { Conflict, discard, edit, isFieldDirty, rebase, save, stored, valueOf } from "./drafts.js";
import { about, gap, number, percent, t } from "./i18n.js";
import { preview } from "./markdown.js";
import { coverageLine } from "./tab_compress.js";
import { estimator } from "./tokens.js";
import { busy, note, toast } from "./ui.js";

const FIELDS = ["fixed_memory", "summary"];
const COUNT_MS = 120;

function counts(session) {
  const { row, item } = session;
  return {
    fixed_memory: estimator(row.fixed_memory, item.fixed_memory_tokens),
    summary: estimator(row.summary, item.summary_tokens),
  };
}

function editor(session, name, onEdit) {
  const { row } = session;
  const id = newId("editor");
  const counter = h("span", { class: "counter", id: `${id}-count` });
  const area = h("textarea", {
    id, class: "input editor", rows: 10, dir: "auto", spellcheck: "false", maxlength: 200000,
    "aria-describedby": `${id}-hint ${id}-count`, value: valueOf(row, name),
  });
  const shown = h("div", { class: "markdown input", hidden: true, tabindex: "0", dir: "auto", "aria-label": t("memory.preview") });
  const mark = h("span", { class: "chip chip-warning" }, t("list.unsaved"));
  const estimate = counts(session)[name];
  let timer = 0;
  const update = () => {
    const tokens = estimate(area.value);
    const budget = valueOf(row, "recent_context_token_budget");
    const exact = area.value === row[name];
    fill(counter, t(exact ? "memory.tokens" : "memory.tokensAbout", { tokens: exact ? about(tokens) : number(tokens), share: percent(tokens, budget), budget: number(budget) }),
      3 * tokens > budget ? ` · ${t("memory.third")}` : "");
    counter.classList.toggle("over", tokens > budget);
    mark.hidden = !isFieldDirty(row.session_id, name);
  };
  area.addEventListener("input", () => {
    edit(session.row, name, area.value);
    mark.hidden = !isFieldDirty(row.session_id, name);
    clearTimeout(timer);
    timer = setTimeout(update, COUNT_MS);
    onEdit();
  });
  const toggle = button(t("memory.preview"), () => {
    const show = shown.hidden;
    if (show) fill(shown, area.value ? preview(area.value) : h("p", { class: "hint" }, t("memory.nothing")));
    shown.hidden = !show;
    area.hidden = show;
    toggle.setAttribute("aria-pressed", String(show));
  }, "text", { "aria-pressed": "false", class: "btn btn-text small" });
  update();
  return h("section", { class: "card", "data-field": name },
    h("div", { class: "card-head" }, h("label", { for: id, class: "card-title" }, t(`memory.${name}`)), mark, h("span", { class: "grow" }), toggle),
    h("p", { class: "hint", id: `${id}-hint` }, t(`memory.${name}Hint`)),
    area, shown,
    h("div", { class: "row" }, counter));
}

/** The tab. */
export function memoryTab(session) {
  const node = h("div", { class: "stack" });
  const actions = h("div", { class: "row end sticky" });
  const messages = h("div", { "aria-live": "polite" });

  const anyDirty = () => FIELDS.some((name) => isFieldDirty(session.row.session_id, name));

  const saveButton = button(t("action.save"), onSave, "primary");
  const undoButton = button(t("action.discard"), () => {
    discard(session.row.session_id, FIELDS);
    render();
  });

  function updateActions() {
    saveButton.disabled = !anyDirty();
    undoButton.disabled = !anyDirty();
  }

  async function onSave() {
    await busy(saveButton, () => saveFields(session, FIELDS, {
      done: render,
      conflict: (error) => fill(node, conflictView(session, error, render)),
      failed: (error) => fill(messages, note("error", t("memory.saveFailed"), " ", error.message)),
    }));
    updateActions();
  }

  function render() {
    fill(messages);
    fill(actions, undoButton, saveButton);
    fill(node, FIELDS.map((name) => (name === "summary"
      ? h("div", { class: "stack" }, editor(session, name, updateActions), coverageLine(session.row.coverage))
      : editor(session, name, updateActions))), messages, actions);
    updateActions();
  }

  node.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") {
      event.preventDefault();
      if (anyDirty()) onSave();
    }
  });
  render();
  return node;
}

/** Saves and tells the user how it went. */
export async function saveFields(session, names, { done, conflict, failed }) {
  try {
    const { row, merged } = await save(session.row.session_id, names);
    session.take(row);
    await session.counts().catch(() => {});
    toast(t(merged ? "memory.savedMerged" : "memory.saved"), "success");
    done();
  } catch (error) {
    if (error instanceof Conflict) conflict(error);
    else failed(error);
  }
}

function fieldTitle(name) {
  return t(FIELDS.includes(name) ? `memory.${name}` : `settings.${name}`);
}

/** Both texts of every field that two people changed, and a choice for each. */
export function conflictView(session, { current, fields }, done) {
  const results = {};
  const boxes = fields.map((name) => {
    const mine = String(valueOf(session.row, name));
    const theirs = String(stored(current, name));
    const result = h("textarea", { class: "input editor", rows: 6, dir: "auto", "aria-label": t("conflict.result"), value: mine });
    results[name] = result;
    const side = (title, text, label) => h("div", { class: "side" },
      h("h4", {}, title),
      h("pre", { class: "plain", dir: "auto", tabindex: "0", "aria-label": title }, text || t("memory.nothing")),
      button(label, () => { result.value = text; result.focus(); }, "tonal"));
    return h("section", { class: "card", "data-conflict": name },
      h("h3", { class: "card-title" }, fieldTitle(name)),
      h("div", { class: "sides" },
        side(t("conflict.mine"), mine, t("conflict.useMine")),
        side(t("conflict.theirs"), theirs, t("conflict.useTheirs"))),
      h("div", { class: "row" }, button(t("conflict.useBoth"), () => { result.value = [theirs, mine].filter(Boolean).join("\n\n"); result.focus(); }, "tonal")),
      h("p", { class: "hint" }, t("conflict.resultHint")),
      result);
  });
  const messages = h("div", {});
  const saveButton = button(t("conflict.save"), () => busy(saveButton, async () => {
    const values = Object.fromEntries(fields.map((name) => [name, convert(stored(current, name), results[name].value)]));
    rebase(current);
    session.row = current;
    for (const [name, value] of Object.entries(values)) edit(current, name, value);
    await saveFields(session, fields, {
      done,
      conflict: (error) => fill(node, conflictView(session, error, done)),
      failed: (error) => fill(messages, note("error", error.message)),
    });
  }), "primary");
  const theirsButton = button(t("conflict.dropMine"), () => {
    discard(current.session_id, fields);
    rebase(current);
    session.take(current);
    session.counts().catch(() => {}).then(done);
  });
  const node = h("div", { class: "stack conflict" },
    note("warning", h("strong", {}, t("conflict.title")), gap(), t("conflict.text")),
    boxes, messages, h("div", { class: "row end" }, theirsButton, saveButton));
  return node;
}

function convert(like, text) {
  if (typeof like === "boolean") return text.trim() === "true";
  return typeof like === "number" ? Number(text) : text;
}
