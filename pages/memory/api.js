// Calls to the plugin through the WebUI's bridge, and the state of the connection.
//
// The bridge gives only a message for a failed call, so a lost connection is told
// from an error of ours by that message or by no answer in time.

import { ownHalf } from "./i18n.js";

const bridge = window.AstrBotPluginPage;
const TIMEOUT_MS = 30_000;
const RETRY_MS = 3_000;
const LOST = /network error|timeout|failed to fetch|status code (500|502|504)|ECONN/i;

export class ConnectionLost extends Error {}

const listeners = new Set();
let lost = false;
let retryTimer = 0;

export function connectionLost() {
  return lost;
}

/** Calls back with true when the connection is lost and false when it is back. */
export function onConnection(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function setLost(value) {
  if (lost === value) return;
  lost = value;
  listeners.forEach((listener) => listener(lost));
}

function within(promise, milliseconds) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new ConnectionLost("timeout")), milliseconds);
  });
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

async function call(makePromise, milliseconds = TIMEOUT_MS) {
  try {
    const answer = await within(makePromise(), milliseconds);
    setLost(false);
    return answer;
  } catch (error) {
    if (!(error instanceof ConnectionLost) && !LOST.test(error.message)) {
      setLost(false);
      throw new Error(ownHalf(error.message));
    }
    setLost(true);
    scheduleRetry();
    throw new ConnectionLost(error.message);
  }
}

function scheduleRetry() {
  clearTimeout(retryTimer);
  retryTimer = setTimeout(retryNow, RETRY_MS);
}

/** Asks whether the plugin answers again; goes on asking until it does. */
export async function retryNow() {
  clearTimeout(retryTimer);
  try {
    await get("health");
  } catch (error) {
    if (!(error instanceof ConnectionLost)) setLost(false);
  }
}

export function get(endpoint, params = {}) {
  return call(() => bridge.apiGet(endpoint, params));
}

export function post(endpoint, body) {
  return call(() => bridge.apiPost(endpoint, body));
}

export function upload(endpoint, file) {
  return call(() => bridge.upload(endpoint, file), 60_000);
}

export function download(endpoint, params, filename) {
  return call(() => bridge.download(endpoint, params, filename), 120_000);
}
