// Package docs holds the documents to their word: what they print is run.
package docs
