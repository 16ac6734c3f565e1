package main

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/kaji-k8s/kaji/examples/operators/go/webapp/api/v1"
)

// webhook fills in what is left out and refuses what cannot work.
type webhook struct {
	hosts hosts
}

func (w *webhook) setUp(mgr ctrl.Manager) error {
	return ctrl.NewWebhookManagedBy(mgr, &v1.WebApp{}).WithDefaulter(w).WithValidator(w).Complete()
}

// Default implements admission.Defaulter.
func (w *webhook) Default(ctx context.Context, app *v1.WebApp) error {
	// The object may not know yet where it is created.
	if request, err := admission.RequestFromContext(ctx); err == nil && app.Namespace == "" {
		app.Namespace = request.Namespace
		defer func() { app.Namespace = "" }()
	}
	app.SetDefaults()
	return nil
}

// ValidateCreate implements admission.Validator. The definition sees to it that the host stays what it is. Two that are
// created at once both get by here; one of them will not get ready.
func (w *webhook) ValidateCreate(ctx context.Context, app *v1.WebApp) (admission.Warnings, error) {
	problems := image(app)
	holder, err := w.hosts.holder(ctx, app.Spec.Host)
	if err != nil {
		return nil, err
	}
	if holder != "" && holder != owner(app) {
		problems = append(problems, field.Invalid(field.NewPath("spec", "host"), app.Spec.Host, "belongs to "+holder))
	}
	return nil, refusal(app, problems)
}

// ValidateUpdate implements admission.Validator.
func (w *webhook) ValidateUpdate(_ context.Context, _, app *v1.WebApp) (admission.Warnings, error) {
	// Objects on their way out are never refused: their finalizer could not be removed.
	if !app.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	return nil, refusal(app, image(app))
}

// ValidateDelete implements admission.Validator.
func (w *webhook) ValidateDelete(context.Context, *v1.WebApp) (admission.Warnings, error) {
	return nil, nil
}

// image complains about one that may be another tomorrow, as far as its name tells.
func image(app *v1.WebApp) field.ErrorList {
	// A colon before the last slash is that of a registry's port.
	last := app.Spec.Image[strings.LastIndex(app.Spec.Image, "/")+1:]
	if _, tag, _ := strings.Cut(last, ":"); strings.Contains(last, "@") || tag != "" && tag != "latest" {
		return nil
	}
	said := "needs a tag other than latest, or a digest"
	return field.ErrorList{field.Invalid(field.NewPath("spec", "image"), app.Spec.Image, said)}
}

func refusal(app *v1.WebApp, problems field.ErrorList) error {
	if len(problems) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1.GroupVersion.WithKind("WebApp").GroupKind(), app.Name, problems)
}
