export default () => globalThis.kaji.stop();
