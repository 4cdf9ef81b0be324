// The code is behind the `#` of the link, which browsers send to nobody. It is taken out of the address at once, so that it stays in no history.
"use strict";

const code = location.hash.slice(1);
if (code) {
  history.replaceState(null, "", location.pathname);
  document.getElementById("code").value = code;
  document.getElementById("form").submit();
}
