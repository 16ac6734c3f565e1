module.exports = {
  testEnvironment: 'node',
  testMatch: ['<rootDir>/*.spec.mjs'],
  moduleFileExtensions: ['mjs', 'js', 'cjs', 'json'],
  // The client of Node.js is of ES modules, which jest takes as they are with node's --experimental-vm-modules.
  transform: {},
  globalSetup: '<rootDir>/setup.mjs',
  globalTeardown: '<rootDir>/teardown.mjs',
  testTimeout: 60_000,
};
