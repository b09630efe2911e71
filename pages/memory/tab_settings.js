// The options and the compress prompt of a session; the options also for all sessions.

import { get, post } from "./api.js";
import { button, field, fill, h } from "./dom.js";
import { discard, edit, isFieldDirty, valueOf } from "./drafts.js";
import { number, ownHalf, t } from "./i18n.js";
import { conflictView, saveFields } from "./tab_memory.js";
import { busy, confirmDialog, failed, loading, note, toast } from "./ui.js";
import { warningsView } from "./warnings.js";

// A number's limits and step; a flag has none.
const LIMITS = {
  recent_context_token_budget: [1024, 1_000_000, 1], summary_target_tokens: [100, 20_000, 1],
  window_keep_ratio: [0.3, 1, 0.05], keep_first_turns: [0, 50, 1], tail_tokens: [0, 1_000_000, 1],
  auto_compress_min_messages: [2, 1000, 1], auto_compress_threshold: [0.3, 1, 0.05],
  topic_idle_messages: [0, 1000, 1], topic_idle_hours: [0, 720, 1],
};
const CARDS = {
  numbers: ["recent_context_token_budget", "summary_target_tokens"],
  window: ["window_keep_ratio", "keep_first_turns", "tail_tokens"],
  auto: ["auto_compress", "auto_compress_notice", "auto_compress_min_messages", "auto_compress_threshold"],
  topic: ["topic_idle_messages", "topic_idle_hours"],
  model: ["archive_enabled", "search_tool_enabled", "memory_enabled"],
};

function problemOf(name, text) {
  const [least, most, step] = LIMITS[name];
  const value = Number(text);
  const form = step === 1 ? /^\d+$/ : /^\d+(\.\d+)?$/;
  const good = form.test(text.trim()) && value >= least && value <= most;
  return good ? "" : t("settings.range", { least: number(least), most: number(most) });
}

function numberField(session, name, onEdit) {
  const [least, most, step] = LIMITS[name];
  const input = h("input", { type: "number", inputmode: step === 1 ? "numeric" : "decimal", class: "input", min: least, max: most, step: step === 1 ? 1 : "any", value: valueOf(session.row, name) });
  const problem = h("p", { class: "problem", role: "alert" });
  input.addEventListener("input", () => {
    const text = problemOf(name, input.value);
    fill(problem, text);
    input.setAttribute("aria-invalid", String(Boolean(text)));
    if (!text) edit(session.row, name, Number(input.value));
    onEdit();
  });
  return {
    name, node: h("div", {}, field(t(`settings.${name}`), input, t(`settings.${name}Hint`)), problem),
    bad: () => Boolean(problemOf(name, input.value)), value: () => Number(input.value),
  };
}

function flagField(session, name, onEdit) {
  const input = h("input", { type: "checkbox", class: "check", checked: valueOf(session.row, name) });
  input.addEventListener("change", () => {
    edit(session.row, name, input.checked);
    onEdit();
  });
  const node = field(t(`settings.${name}`), input, t(`settings.${name}Hint`));
  node.classList.add("field-check");
  return { name, node, bad: () => false, value: () => input.checked };
}

function shown(value) {
  return typeof value === "boolean" ? t(value ? "settings.on" : "settings.off") : number(value);
}

async function applyToAll(values, messages) {
  try {
    const { total } = await get("sessions", { limit: 1 });
    const sure = await confirmDialog({
      title: t("settings.allTitle"),
      body: [h("p", {}, t("settings.allText", { count: number(total) })),
        h("ul", {}, Object.entries(values).map(([name, value]) => h("li", {}, t("settings.allValue", { name: t(`settings.${name}`), value: shown(value) }))))],
      confirm: t("settings.allConfirm", { count: number(total) }),
    });
    if (!sure) return false;
    const { updated } = await post("sessions/apply", { changes: values });
    toast(t("settings.allDone", { count: number(updated) }), "success");
    return true;
  } catch (error) {
    fill(messages, note("error", error.message));
    return false;
  }
}

function valuesCard(session, card, rerender, conflict) {
  const names = CARDS[card];
  const messages = h("div", { "aria-live": "polite" });
  const update = () => {
    const bad = fields.some((each) => each.bad());
    saveButton.disabled = bad || !names.some((name) => isFieldDirty(session.row.session_id, name));
    allButton.disabled = bad;
  };
  const fields = names.map((name) => (name in LIMITS ? numberField : flagField)(session, name, () => update()));
  const saveButton = button(t("settings.saveOne"), () => busy(saveButton, () => saveFields(session, names, {
    done: rerender, conflict, failed: (error) => fill(messages, note("error", error.message)),
  })).then(update), "primary");
  const allButton = button(t("settings.saveAll"), () => busy(allButton, async () => {
    const values = Object.fromEntries(fields.map((each) => [each.name, each.value()]));
    if (!(await applyToAll(values, messages))) return;
    discard(session.row.session_id, names);
    await session.reload().catch(() => {});
    rerender();
  }), "tonal");
  update();
  return h("section", { class: "card", "data-card": card }, h("h3", { class: "card-title" }, t(`settings.${card}`)),
    fields.map((each) => each.node), messages, h("div", { class: "row end" }, allButton, saveButton));
}

function promptCard(session, rerender, conflict) {
  const name = "compress_prompt";
  const sessionId = session.row.session_id;
  const box = h("div", {});
  const messages = h("div", { "aria-live": "polite" });
  const finish = { done: rerender, conflict, failed: (error) => fill(messages, note("error", error.message)) };

  function show({ prompt, template, message, default: isDefault }) {
    const unsaved = isFieldDirty(sessionId, name);
    const area = h("textarea", { class: "input editor", rows: 12, dir: "auto", spellcheck: "false", maxlength: 20000, value: unsaved ? valueOf(session.row, name) : session.row.compress_prompt || template });
    const chip = h("span", { class: isDefault ? "chip" : "chip chip-success" }, t(isDefault ? "settings.promptDefault" : "settings.promptOwn"));
    const saveButton = button(t("action.save"), () => busy(saveButton, () => saveFields(session, [name], finish)), "primary", { disabled: !unsaved });
    const resetButton = button(t("settings.promptReset"), async () => {
      const sure = await confirmDialog({ title: t("settings.promptReset"), body: h("p", {}, t("settings.promptResetText")), confirm: t("settings.promptReset") });
      if (!sure) return;
      discard(sessionId, [name]);
      if (session.row[name]) {
        edit(session.row, name, "");
        await saveFields(session, [name], finish);
      } else rerender();
    }, "text", { disabled: isDefault && !unsaved });
    area.addEventListener("input", () => {
      // The unchanged default is stored as nothing, so that later defaults reach it.
      edit(session.row, name, isDefault && area.value === template ? "" : area.value);
      saveButton.disabled = !isFieldDirty(sessionId, name);
      resetButton.disabled = isDefault && saveButton.disabled;
    });
    return h("div", { class: "stack" }, h("div", { class: "row" }, chip), field(t("settings.prompt"), area, t("settings.promptHint")),
      messages, h("div", { class: "row end" }, resetButton, saveButton),
      h("details", { class: "card flat rendered" }, h("summary", {}, t("settings.promptRendered")),
        message ? note("warning", ownHalf(message)) : h("pre", { class: "plain", dir: "auto", tabindex: "0", "aria-label": t("settings.promptRendered") }, prompt)));
  }

  async function load() {
    fill(box, loading());
    try {
      fill(box, show(await get("session/prompt", { session_id: sessionId })));
    } catch (error) {
      fill(box, failed(error, load));
    }
  }

  load();
  return h("section", { class: "card" }, h("h3", { class: "card-title" }, t("settings.promptTitle")), box);
}

/** The tab. */
export function settingsTab(session) {
  const node = h("div", { class: "stack" });
  function render() {
    const conflict = (error) => fill(node, conflictView(session, error, render));
    fill(node, warningsView(session.health), Object.keys(CARDS).map((card) => valuesCard(session, card, render, conflict)), promptCard(session, render, conflict));
  }
  render();
  return node;
}
