// @ts-check
/** Parts of the page that are folded on narrow screens and open on navigation. */

const folds = /** @type {HTMLDetailsElement[]} */ ([...document.querySelectorAll("details.fold")]);

/** Fold once, so that parts that the user opened stay open. */
export function foldOnNarrowScreens() {
  const narrow = matchMedia("(max-width: 40rem)").matches;
  for (const fold of folds) fold.open = !narrow;
  const show = () => {
    const part = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    for (const fold of folds) if (part?.contains(fold) || part === fold) fold.open = true;
  };
  addEventListener("hashchange", show);
  for (const link of document.querySelectorAll('a[href^="#"]')) link.addEventListener("click", () => setTimeout(show)); // also for a repeated target
  show();
}
