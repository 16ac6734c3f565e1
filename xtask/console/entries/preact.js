// What every view needs: one module, so that there is one copy of preact.
import { h } from "preact";
import htm from "htm";
export { h, render, Component, Fragment, createContext } from "preact";
export { useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback } from "preact/hooks";
export { signal, computed, effect, batch, useSignal, useComputed, useSignalEffect } from "@preact/signals";
export const html = htm.bind(h);
