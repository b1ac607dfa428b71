import type { ReactNode } from 'react';
import { ApiError } from '../api/client';
import { Page } from './page';
import { ErrorState, Loading } from './states';

interface PendingPageProps {
  title: string;
  query: { error: Error | null; refetch: () => unknown };
  /** Shown if the object does not exist. */
  missing: ReactNode;
}

/** The page of an object as long as the object has not been read. */
export function PendingPage({ title, query: { error, refetch }, missing }: PendingPageProps) {
  const isMissing = error instanceof ApiError && error.status === 404;
  return (
    <Page title={title}>
      {isMissing ? missing : error ? <ErrorState error={error} retry={() => void refetch()} /> : <Loading />}
    </Page>
  );
}
