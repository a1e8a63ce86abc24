// @ts-check
// Before anything is drawn: the colours this person chose here, if any; otherwise those of their system.
const chosen = localStorage.getItem("theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
