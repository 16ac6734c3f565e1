// Package shared has the control of `kaji envtest serve` in Go, plain HTTP, and a suite of tests that share one set-up by it.
package shared

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Control is a process `kaji envtest serve`, which ends with Stop, and with this process.
type Control struct {
	// Base is set up once, and forked.
	Base *Cluster

	url, token string
	process    *exec.Cmd
	input      io.Closer
}

// Cluster is one of the process.
type Cluster struct {
	Name string

	control                  *Control
	kubeconfig, faultsConfig string
}

// Fault is one of a plan: `kaji test` writes them.
type Fault struct {
	Kind string `json:"kind"`
	At   Point  `json:"at"`
}

// Point is the nth request of a client.
type Point struct {
	Client   string `json:"client"`
	Verb     string `json:"verb"`
	Resource string `json:"resource"`
	Nth      int    `json:"nth"`
}

// Report is what came about.
type Report struct {
	Armed []Fault `json:"armed"`
	Fired []Fault `json:"fired"`
	Kills int     `json:"kills"`
}

type description struct {
	Name       string `json:"name"`
	Kubeconfig string `json:"kubeconfig"`
	Faults     struct {
		Kubeconfig string `json:"kubeconfig"`
	} `json:"faults"`
}

// Start starts the program with these flags besides.
func Start(program string, flags ...string) (*Control, error) {
	process := exec.Command(program, append([]string{"envtest", "serve", "--until-stdin-closes"}, flags...)...)
	process.Stderr = os.Stderr
	input, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(output).ReadBytes('\n')
	if err != nil {
		return nil, errors.Join(err, process.Wait())
	}
	var announced struct {
		Control string      `json:"control"`
		Token   string      `json:"token"`
		Cluster description `json:"cluster"`
	}
	if err := json.Unmarshal(line, &announced); err != nil {
		return nil, err
	}
	c := &Control{url: announced.Control, token: announced.Token, process: process, input: input}
	c.Base = c.cluster(announced.Cluster)
	return c, nil
}

// Stop ends the process and all clusters.
func (c *Control) Stop() error {
	return errors.Join(c.input.Close(), c.process.Wait())
}

func (c *Control) cluster(d description) *Cluster {
	return &Cluster{Name: d.Name, control: c, kubeconfig: d.Kubeconfig, faultsConfig: d.Faults.Kubeconfig}
}

func (c *Control) do(ctx context.Context, method, path string, body, answer any) error {
	data := []byte{}
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+"/v1/"+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	// On the loopback, past all proxies.
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		text, err := io.ReadAll(response.Body)
		return errors.Join(err, fmt.Errorf("%s %s: %s", method, path, strings.TrimSpace(string(text))))
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// Fork makes another cluster that begins as this one is.
func (c *Cluster) Fork(ctx context.Context) (*Cluster, error) {
	var d description
	if err := c.control.do(ctx, http.MethodPost, "clusters/"+c.Name+"/forks", nil, &d); err != nil {
		return nil, err
	}
	return c.control.cluster(d), nil
}

// Delete ends the cluster.
func (c *Cluster) Delete(ctx context.Context) error {
	return c.control.do(ctx, http.MethodDelete, "clusters/"+c.Name, nil, nil)
}

// Config is an administrator's.
func (c *Cluster) Config() (*rest.Config, error) {
	return clientcmd.RESTConfigFromKubeConfig([]byte(c.kubeconfig))
}

// FaultsConfig is an administrator's, with the fault layer in front: for the client under test.
func (c *Cluster) FaultsConfig() (*rest.Config, error) {
	return clientcmd.RESTConfigFromKubeConfig([]byte(c.faultsConfig))
}

// Advance moves the cluster's clock forward.
func (c *Cluster) Advance(ctx context.Context, seconds float64) error {
	body := map[string]float64{"advanceSeconds": seconds}
	return c.control.do(ctx, http.MethodPost, "clusters/"+c.Name+"/clock", body, nil)
}

// Arm brings faults about.
func (c *Cluster) Arm(ctx context.Context, faults ...Fault) error {
	body := map[string][]Fault{"faults": faults}
	return c.control.do(ctx, http.MethodPut, "clusters/"+c.Name+"/faults", body, nil)
}

// Faults says what came about.
func (c *Cluster) Faults(ctx context.Context) (r Report, err error) {
	err = c.control.do(ctx, http.MethodGet, "clusters/"+c.Name+"/faults", nil, &r)
	return r, err
}

// WaitForKill waits until the client under test was to be killed more than so many times, for half a minute.
func (c *Cluster) WaitForKill(ctx context.Context, after int) (int, error) {
	var r Report
	path := fmt.Sprintf("clusters/%s/kills?after=%d&seconds=30", c.Name, after)
	err := c.control.do(ctx, http.MethodGet, path, nil, &r)
	return r.Kills, err
}
