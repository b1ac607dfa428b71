import { Skeleton } from '@mantine/core';
import { lazy, Suspense } from 'react';
import type { CodeEditorProps } from './code-editor';

const Editor = lazy(() => import('./code-editor'));

/** The editor, loaded when it is first shown; its space is reserved. */
export function CodeEditor(props: CodeEditorProps) {
  return (
    <Suspense fallback={<Skeleton height={(props.minHeight ?? 120) + 18} />}>
      <Editor {...props} />
    </Suspense>
  );
}
