// Pictures are drawn for light and for dark pages: `name.svg` beside `name-dark.svg`. The page's text names the light one alone, so that it reads
// well everywhere; here the dark one takes its place while the page is dark.
(() => {
  const PLACE = /((?:pictures|assets)\/[a-z0-9-]+?)(-dark)?\.svg$/;
  const show = () => {
    const dark = document.body.getAttribute("data-md-color-scheme") === "slate";
    for (const image of document.querySelectorAll("img[src$='.svg']")) {
      const wanted = image.src.replace(PLACE, dark ? "$1-dark.svg" : "$1.svg");
      if (image.src !== wanted) image.src = wanted;
    }
  };
  new MutationObserver(show).observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
  show();
})();
