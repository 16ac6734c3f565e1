export { parse, parseDocument, stringify, LineCounter, isMap, isSeq, isPair, isScalar } from "yaml";
