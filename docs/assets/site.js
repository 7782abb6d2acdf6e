document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".arithmatex")) {
    katex.render(box.textContent.replace(/^\s*\\\[|\\\]\s*$/g, ""), box, { displayMode: true, strict: false });
  }
  /* What scrolls can be reached by the keyboard. */
  const scrolling = ".md-typeset pre > code, .md-typeset__scrollwrap, .arithmatex";
  for (const box of document.querySelectorAll(scrolling)) box.tabIndex = 0;
  /* The parts of the navigation have names of their own, and so have the buttons that copy code. */
  for (const part of document.querySelectorAll("nav.md-nav[aria-labelledby]")) {
    part.removeAttribute("aria-labelledby");
    part.setAttribute("aria-label", `Pages: ${part.querySelector(".md-nav__title")?.textContent.trim()}`);
  }
  /* `loss` and `Loss` are one name to a screen reader. */
  for (const [i, part] of document.querySelectorAll(".md-nav--secondary .md-nav__list .md-nav").entries()) {
    part.setAttribute("aria-label", `Part ${i + 1}: ${part.getAttribute("aria-label")}`);
  }
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  const name = () => {
    for (const [i, box] of document.querySelectorAll("nav.md-code__nav").entries()) box.ariaLabel = `Code ${i + 1}`;
  };
  name();
  new MutationObserver(name).observe(document.querySelector("main"), { childList: true, subtree: true });
});
