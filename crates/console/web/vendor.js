// Written by `cargo xtask console-vendor`: where the libraries are.
export * from "../vendor/preact-d71f395d0fcaf89d.js";
export const uplot = () => import("../vendor/uplot-d4202deca5ad88ef.js");
export const dagre = () => import("../vendor/dagre-68526c29c3be279c.js");
export const yaml = () => import("../vendor/yaml-83a35d92bf1fbc65.js");
export const codemirror = () => import("../vendor/codemirror-ef335bacc4d643bf.js");
export const xterm = () => import("../vendor/xterm-8bf08cfb14467a58.js");
export const styles = {
  uplot: new URL("../vendor/uplot-f22add102039a00b.css", import.meta.url).href,
  xterm: new URL("../vendor/xterm-263c74ca76a0ab1f.css", import.meta.url).href,
};
