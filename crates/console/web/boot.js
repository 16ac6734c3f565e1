// Loads again what did not come, before any module runs.
//
// A browser gives up the connections it is opening when an address of the machine changes (Chromium's ERR_NETWORK_CHANGED), as
// happens whenever a pod starts on it; a module that fails so is not loaded again by itself, and the page would stay empty. What has
// come is in the browser's cache, so each round gets further.
"use strict";
(() => {
  const KEY = "kaji.boot";
  const ROUNDS = 8;
  const wait = (round) => Math.min(5_000, 150 * 2 ** round);

  function style(link) {
    const round = Number(link.dataset.round ?? 0) + 1;
    if (round > ROUNDS) return;
    const again = link.cloneNode();
    again.dataset.round = round;
    again.href = `${link.href.split("?")[0]}?round=${round}`;
    setTimeout(() => link.replaceWith(again), wait(round));
  }

  function script(url) {
    const round = Number(sessionStorage.getItem(KEY)) + 1;
    if (round <= ROUNDS) {
      sessionStorage.setItem(KEY, round);
      setTimeout(() => location.reload(), wait(round));
      return;
    }
    // A reload by hand begins anew.
    sessionStorage.removeItem(KEY);
    const text = document.querySelector(".boot p, p.boot");
    if (text) text.textContent = `The console cannot be loaded: ${url} does not come, or a module that it needs. Reload the page to try again.`;
  }

  addEventListener("error", ({ target }) => {
    if (target instanceof HTMLScriptElement) script(target.src);
    else if (target instanceof HTMLLinkElement && target.rel === "stylesheet") style(target);
  }, true);
})();
