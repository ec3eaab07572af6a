package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
)

func TestServeAnswersUntilItsContextEnds(t *testing.T) {
	local(t, 1, func(j *conduit.Job) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		served := make(chan error, 1)
		go func() { served <- ServeListener(ctx, l, NewCollector(j)) }()
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
		resp, err := client.Get("http://" + l.Addr().String() + "/metrics")
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "\nibconduit_ranks{job_id=") {
			return fmt.Errorf("status %s:\n%s", resp.Status, body)
		}
		cancel()
		if err := <-served; err != nil {
			return err
		}
		if _, err := client.Get("http://" + l.Addr().String() + "/metrics"); err == nil {
			return errors.New("still answers after the end")
		}
		return nil
	})
}

func TestServeSaysWhyItCannotListen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err = Serve(t.Context(), l.Addr().String())
	if err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("error %v does not name the address", err)
	}
	var sys *os.SyscallError
	if !errors.As(err, &sys) {
		t.Errorf("error %v lost its errno", err)
	}
}
