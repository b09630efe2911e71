// Small parts that every view uses: states, notes, dialogs, toasts.

import { button, fill, h, newId } from "./dom.js";
import { t } from "./i18n.js";

/** A short message at the foot of the page. */
export function toast(message, kind = "info") {
  const node = h("div", { class: `toast toast-${kind}` }, message);
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), 5000);
}

export function loading(label = t("state.loading")) {
  return h("div", { class: "state", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), label);
}

export function empty(title, text, ...actions) {
  return h("div", { class: "state" }, h("p", { class: "state-title" }, title), text ? h("p", {}, text) : null, actions);
}

export function failed(error, retry) {
  return h("div", { class: "state state-error", role: "alert" },
    h("p", { class: "state-title" }, t("state.failed")),
    h("p", { class: "wrap" }, error.message),
    retry ? button(t("action.retry"), retry, "tonal") : null);
}

/** A coloured block with a message: info, warning, error or success. */
export function note(kind, ...children) {
  const role = kind === "error" ? "alert" : "note";
  return h("div", { class: `note note-${kind}`, role }, children);
}

/** Runs a load into a node: loading state, then the content, or the error with a retry. */
export async function loadInto(node, load, show, stillWanted = () => true) {
  fill(node, loading());
  try {
    const answer = await load();
    if (stillWanted()) fill(node, show(answer));
  } catch (error) {
    if (stillWanted()) fill(node, failed(error, () => loadInto(node, load, show, stillWanted)));
  }
}

/** Disables a button while its work runs, so that nothing is sent twice. */
export async function busy(control, work) {
  control.disabled = true;
  control.setAttribute("aria-busy", "true");
  try {
    return await work();
  } finally {
    control.disabled = false;
    control.removeAttribute("aria-busy");
  }
}

function trapFocus(event, box) {
  if (event.key !== "Tab") return;
  const items = [...box.querySelectorAll("button, input, textarea, select, [tabindex='0']")]
    .filter((item) => !item.disabled);
  const edge = event.shiftKey ? items[0] : items[items.length - 1];
  if (document.activeElement === edge) {
    event.preventDefault();
    (event.shiftKey ? items[items.length - 1] : items[0]).focus();
  }
}

/** A question inside the page; resolves to whether it was confirmed. */
export function confirmDialog({ title, body, confirm, danger = false }) {
  const overlay = document.getElementById("overlay");
  const before = document.activeElement;
  const titleId = newId("dialog");
  return new Promise((resolve) => {
    const close = (answer) => {
      fill(overlay);
      document.getElementById("app").inert = false;
      before?.focus?.();
      resolve(answer);
    };
    const yes = button(confirm, () => close(true), danger ? "danger" : "primary");
    const box = h("div", { class: "dialog", role: "dialog", "aria-modal": "true", "aria-labelledby": titleId },
      h("h2", { id: titleId }, title),
      h("div", { class: "dialog-body" }, body),
      h("div", { class: "row end" }, button(t("action.cancel"), () => close(false)), yes));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close(false);
      trapFocus(event, box);
    });
    fill(overlay, h("div", { class: "scrim" }, box));
    document.getElementById("app").inert = true;
    yes.focus();
  });
}

const FOLD = 600;
const STEP = 20_000;

/** A text that shows its start, and the rest on request. */
export function folded(text, limit = FOLD) {
  const body = h("div", { class: "text", dir: "auto" });
  if (text.length <= limit * 1.2) return fill(body, text);
  let shown = limit;
  const box = h("div", {});
  const render = () => {
    fill(body, text.slice(0, shown), shown < text.length ? "…" : "");
    const left = text.length - shown;
    const more = left > 0
      ? button(t("action.more", { count: left }), () => { shown += STEP; render(); }, "text", { class: "btn btn-text small", "aria-expanded": "false" })
      : button(t("action.fold"), () => { shown = limit; render(); }, "text", { class: "btn btn-text small", "aria-expanded": "true" });
    fill(box, body, more);
  };
  render();
  return box;
}

/** Tabs with arrow keys; show(key) builds the panel's content. */
export function tabs(items, active, show, label) {
  const panelId = newId("panel");
  const panel = h("div", { class: "panel", role: "tabpanel", id: panelId });
  const list = h("div", { class: "tabs", role: "tablist", "aria-label": label });
  const select = (key, focus) => {
    for (const tab of list.children) {
      const on = tab.dataset.key === key;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      if (on) {
        panel.setAttribute("aria-labelledby", tab.id);
        if (focus) tab.focus();
        tab.scrollIntoView?.({ block: "nearest", inline: "nearest" });
      }
    }
    fill(panel, show(key));
  };
  list.append(...items.map(({ key, title }) =>
    h("button", { type: "button", role: "tab", id: newId("tab"), "data-key": key, "aria-controls": panelId, class: "tab", onclick: () => select(key) }, title)));
  list.addEventListener("keydown", (event) => {
    const keys = items.map((item) => item.key);
    const at = keys.indexOf(document.activeElement.dataset.key);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: keys.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    select(keys[(to + keys.length) % keys.length], true);
  });
  select(active);
  return { node: h("div", { class: "tabbed" }, list, panel), select };
}
