//go:build imports

// Names the packages which Crossplane's end-to-end tests import, so that go.mod has their modules; nothing is built of it.
package main

import (
	_ "github.com/crossplane/crossplane/v2/test/e2e/config"
	_ "github.com/crossplane/crossplane/v2/test/e2e/funcs"
)
