// Links between our pages keep the session, and keys reach the pages: 1 to 5, and / for the first field of a page.
(() => {
  if (window.eagleEyeLinks) return;
  window.eagleEyeLinks = true;
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("a.ee-link");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || link.origin !== location.origin) return;
    event.preventDefault();
    history.pushState({}, "", link.href);
    window.dispatchEvent(new PopStateEvent("popstate", { state: {} }));
    document.querySelector('[data-testid="stMain"]')?.scrollTo(0, 0);
  });
  // A figure that is drawn anew forgets its zoom: while one is enlarged the page stands still, and a double click sets it going again.
  // It stands still from the press of the button on, so that what was asked for before does not come over what is enlarged.
  let held = "";  // the page that stands still because of us
  let looks = [];
  const live = () => document.querySelector(".st-key-live input");
  const enlarged = () => [...document.querySelectorAll(".js-plotly-plot")].some((plot) => plot._fullLayout?.xaxis?.autorange === false);
  const look = () => {
    if (!live()) return;
    if (live().checked || held !== location.pathname) held = "";
    if (!(enlarged() ? live().checked : held)) return;
    held = live().checked ? location.pathname : "";
    live().click();
  };
  // What was to be looked at after an earlier press is void with the next one. Whoever takes the switch in hand has the last word.
  document.addEventListener("mousedown", (event) => {
    looks.forEach(clearTimeout);
    looks = [];
    if (event.target.closest?.(".st-key-live")) held = "";
    if (event.button || !live()?.checked || !event.target.closest?.(".js-plotly-plot .draglayer")) return;
    held = location.pathname;
    live().click();
  }, true);
  // A slow browser draws late: it is looked at more than once.
  document.addEventListener("mouseup", (event) => {
    looks.forEach(clearTimeout);
    looks = event.target.closest?.(".st-key-live") ? [] : [350, 1000, 3000].map((wait) => setTimeout(look, wait));
  }, true);
  // While a page is being made its field may not be there, or be exchanged: it is waited for, unless another key or a click follows.
  const beingMade = () => document.querySelector('[data-testid="stApp"]:not([data-test-script-state="notRunning"]), [data-testid="stSkeleton"]');
  const field = () => document.querySelector('[data-testid="stMain"] input:not([type=checkbox]):not([type=radio]), [data-testid="stMain"] [role=combobox]');
  let wanted = false;
  const seek = () => {
    if (wanted && document.activeElement !== field()) field()?.focus();
    if (wanted && beingMade()) requestAnimationFrame(seek);
  };
  document.addEventListener("mousedown", () => { wanted = false; }, true);
  document.addEventListener("keydown", (event) => {
    wanted = false;
    const typing = event.target.closest && event.target.closest("input, textarea, select, [contenteditable], [role=combobox]");
    if (typing || event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.key >= "1" && event.key <= "9") {
      const pages = document.querySelectorAll('[data-testid="stTopNavLink"], [data-testid="stSidebarNavLink"]');
      pages[Number(event.key) - 1]?.click();
    } else if (event.key === "/" && (field() || beingMade())) {
      event.preventDefault();
      wanted = true;
      seek();
    }
  });
})();
