import { defineConfig } from 'vitest/config';

export default defineConfig({ test: { include: ['*.spec.js'], globalSetup: './setup.js', testTimeout: 90_000 } });
