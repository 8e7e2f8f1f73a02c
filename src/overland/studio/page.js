// Filters for the trajectories. Without this script every trajectory is shown.
(() => {
  const episodes = [...document.querySelectorAll(".episode")];
  const filters = document.querySelector(".filters");
  if (!filters) return;
  const domain = document.getElementById("f-domain"), outcome = document.getElementById("f-outcome");
  const count = document.getElementById("f-count"), button = document.getElementById("f-tokens");
  const apply = () => {
    let shown = 0;
    for (const episode of episodes) {
      episode.hidden = (domain.value && episode.dataset.domain !== domain.value)
        || (outcome.value && episode.dataset.outcome !== outcome.value);
      shown += !episode.hidden;
    }
    count.textContent = `${shown} of ${episodes.length} shown`;
  };
  let open = false;
  button.addEventListener("click", () => {
    open = !open;
    for (const strip of document.querySelectorAll(".tokens")) strip.open = open;
    button.textContent = open ? "hide all tokens" : "show all tokens";
  });
  domain.addEventListener("change", apply);
  outcome.addEventListener("change", apply);
  filters.hidden = false;
  apply();
})();
