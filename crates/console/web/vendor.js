// Written by `cargo xtask console-vendor`: where the libraries are.
import { load } from "./load.js";
export * from "../vendor/preact-d71f395d0fcaf89d.js";
export const uplot = () => load(new URL("../vendor/uplot-d4202deca5ad88ef.js", import.meta.url).href);
export const dagre = () => load(new URL("../vendor/dagre-68526c29c3be279c.js", import.meta.url).href);
export const yaml = () => load(new URL("../vendor/yaml-83a35d92bf1fbc65.js", import.meta.url).href);
export const codemirror = () => load(new URL("../vendor/codemirror-ef335bacc4d643bf.js", import.meta.url).href);
export const xterm = () => load(new URL("../vendor/xterm-8bf08cfb14467a58.js", import.meta.url).href);
export const styles = {
  uplot: new URL("../vendor/uplot-f22add102039a00b.css", import.meta.url).href,
  xterm: new URL("../vendor/xterm-263c74ca76a0ab1f.css", import.meta.url).href,
};
