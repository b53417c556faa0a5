const frame = document.getElementById("frame");
const plot = document.getElementById("plot");
const what = document.getElementById("what");
const alarm = document.querySelector(".line");

function tell(event) {
  const thing = event.target.closest("[title]");
  if (thing) what.textContent = thing.title;
}
plot.addEventListener("pointerover", tell);
plot.addEventListener("click", tell);

function show(zoom) {
  const middle = (frame.scrollLeft + frame.clientWidth / 2) / plot.clientWidth;
  plot.style.setProperty("--zoom", zoom);
  plot.className = "zoom" + zoom;
  const place = alarm ? alarm.getBoundingClientRect().left - plot.getBoundingClientRect().left : middle * plot.clientWidth;
  frame.scrollLeft = place - frame.clientWidth / 2;
}
document.querySelector(".zoom").addEventListener("click", event => event.target.value ? show(Number(event.target.value)) : null);
if (alarm) addEventListener("load", () => show(1));
